"""A real Slurm cluster on one machine, made of kernel namespaces.

Every host of the cluster is a set of namespaces with its own PID 1, network
interface, host name, /tmp and slurmd. All of it hangs below one process, the
cluster's init: when that process dies, the kernel ends every process of the
cluster and frees its networks and mounts, so nothing of the machine is touched.
"""
