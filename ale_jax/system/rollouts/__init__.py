"""Episodes of a run: the scheduler, the attempts with their deadlines and retries, and the threads
that play them where there is no Ray (its actors are in `ale_jax.system.actors`)."""
