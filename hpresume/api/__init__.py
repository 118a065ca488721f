"""The HyperPod cluster API: what boto3 and the aws command line speak."""
