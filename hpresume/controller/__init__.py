"""The service beside slurmctld: node recovery and provisioning in one process."""
