"""The agent: the first process of a training container, which starts and restarts the training process.

    main, agent            the program: what one container does, from its start to its exit code
    settings               what the pod tells it
    seat                   the training process of this seat, obeying orders
    leader                 the leading agent: a server around the rules, which have no input or output:
      gang                   the phases: meeting (the start barrier), running, stopping, the end; the blame
      rendezvous, roster     who is there, and who is wanted
      attempt, budget        one start of training, what keeps it from going on, whether there is another
    listener, wire         the port: who may speak, and how large a message may be
    messages, failure      what is said
    child                  the training process: started, watched, stopped, killed with all below it
      process_tree, standby  how
      log, stall, cgroup     what is known of it
    termination            what the container leaves behind

Standard library only, Python 3.9: it runs in images that aren't ours, before TensorFlow is imported.
"""
