"""The agent: the first process of a training container; it starts and restarts the training process.

    main                     the program: what one container does, from its start to its exit code
    settings                 the agent's settings, from the pod's environment
    code                     the job's code, unpacked before the first start
    replica_agent            the agent of one replica: it carries out the leading agent's messages
    leader                   the leading agent: connections and clock around rules without input or output:
      worker_group             the phases: meeting (the start barrier), running, stopping, the end; the report
      rendezvous               which agents are present, and which the controller wants
      attempt, budget          one start of training, what stops it, and whether it is restarted
    wire                     the port: authentication, and limits of a message's size
    messages, failure        the content of messages
    child                    the training process: started, watched, stopped, killed with all descendants
      process_tree, standby    waiting for its processes, their stacks; the warm standby
      log, stall, cgroup       its output, its progress, its memory and processors
    termination              the container's termination message

Standard library only, Python 3.9: it runs in the users' images, before TensorFlow is imported.
"""
