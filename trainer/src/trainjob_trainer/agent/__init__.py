"""The agent: the first process of a training container, which starts and restarts the training process.

    main, agent            the program: what one container does, from its start to its exit code
    settings               what the pod tells it
    seat                   the training process of this seat, obeying orders
    member                 the connection to the leading agent, made again for ever
    leader                 the leading agent: a server around the rules, which have no input or output:
      gang                   the phases: meeting (the start barrier), running, stopping, the end
      rendezvous, roster     who is there, and who is wanted
      attempt, trouble       one start of training, and what keeps it from going on
      blame, budget          which failure started it, and whether training is started again
    listener, wire         the port: who may speak, and how large a message may be
    messages, reading, readable, ledger, failure      what is said
    child                  the training process: started, watched, stopped, killed with all below it
      process_run, process_tree, spawning, standby    how
      log_copy, progress_watch, oom, stacks, stall    what is known of it
    evaluation_watch       whether an evaluator, which nobody leads, still gets on
    termination            what the container leaves behind

Standard library only, Python 3.9: it runs in images that aren't ours, before TensorFlow is imported.
"""
