"""The exception tree of hpresume.

Every error that a user can cause or must act on is one of these. The message
is one line that names the thing, says what is allowed and what to do;
``exit_code`` is what the command line ends with.
"""


class HpresumeError(Exception):
    """Root of all errors raised on purpose by hpresume."""

    exit_code = 1


class UsageError(HpresumeError):
    """The command line asks for something that does not exist or cannot be."""

    exit_code = 2


class ConfigError(HpresumeError):
    """A setting is unreadable, unknown or out of range."""

    exit_code = 2


class MissingDependencyError(HpresumeError):
    """A program, a right or a package of the machine is missing."""


class SlurmError(HpresumeError):
    """Slurm answered with an error, or with something that cannot be read."""


class SlurmTransientError(SlurmError):
    """Slurm cannot answer at the moment; the same call may succeed later."""


class SlurmTimeoutError(SlurmTransientError):
    """A call to Slurm did not end within its time limit."""


class SlurmNotFoundError(SlurmError):
    """Slurm does not know the job, step, node or reservation."""


class SlurmToolError(SlurmError, MissingDependencyError):
    """A tool of Slurm is missing, or cannot be started."""


class SlurmDeniedError(SlurmError):
    """Slurm refuses the call to this user, or its configuration forbids it."""


class JournalError(HpresumeError):
    """The journal of attempts cannot be written or read."""


class DevClusterError(HpresumeError):
    """The development cluster cannot do what was asked."""


class ProviderError(HpresumeError):
    """A source of machines could not do what was asked."""


class ProviderTransientError(ProviderError):
    """It cannot at the moment; the same call may succeed later."""


class ProviderTimeoutError(ProviderTransientError):
    """It did not answer in time; what was asked may have been done all the same."""


class CapacityError(ProviderTransientError):
    """There is no machine of this kind to be had now."""


class ProviderRefusedError(ProviderError):
    """It never will: the request or the account's rights have to change."""


class CredentialError(HpresumeError):
    """A MUNGE credential cannot be made, or is not one to be believed."""


class MessageError(HpresumeError):
    """A supervisor's message to the controller is not one, or is refused."""


class StoreError(HpresumeError):
    """The controller's database cannot be opened, read or written."""


class LeadershipLostError(StoreError):
    """Another instance of the controller leads now: this one must not act."""


class ServiceError(HpresumeError):
    """The cluster service refuses a request; nothing of it was done."""


class RequestRefusedError(ServiceError):
    """The request breaks a rule, on its own or for the cluster as it is now."""


class ResourceNotFoundError(ServiceError):
    """There is no such cluster, node, event or operation."""


class ResourceInUseError(ServiceError):
    """The name is taken."""


class ResourceLimitError(ServiceError):
    """The request would exceed a limit of the account or of the cluster."""


class ConflictError(ServiceError):
    """What is going on at the moment rules the request out."""


class ServiceBusyError(ServiceError):
    """It cannot be done at the moment; the same request may be sent again."""
