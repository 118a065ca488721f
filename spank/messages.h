/* Keeps back what srun says about its options, for the real srun says it again. */
#ifndef HPRESUME_MESSAGES_H
#define HPRESUME_MESSAGES_H

/*
 * From now on, what goes to stderr is kept. It is shown if srun ends, or with
 * messages_show(). Where it cannot be kept, nothing happens.
 */
void messages_keep(void);

/* Show what was kept, and keep no more. */
void messages_show(void);

/* Forget what was kept, and keep no more. */
void messages_drop(void);

#endif
