/* Ends a step's vain attempts to tell anything to an srun whose host is lost. */
#ifndef HPRESUME_LOST_HOST_H
#define HPRESUME_LOST_HOST_H

#include <slurm/spank.h>

/*
 * For slurmstepd, when it is about to tell its srun something. In a step that is
 * protected, one of its supervisor's or an extern step: if it waits for
 * somebody who does not answer, Slurm has ended the job, and the host of the
 * job's batch script is DOWN in Slurm, the waiting is cut short. It is looked
 * for during so many seconds, and for as long as there is such a wait. Returns
 * at once.
 */
void lost_host_watch(spank_t sp, int seconds);

#endif
