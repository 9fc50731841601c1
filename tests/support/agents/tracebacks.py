"""What Python programs print last when they fail."""

from __future__ import annotations


def show(last_line: str, place: str = "train.py:3") -> str:
    """A traceback whose innermost frame is at this place."""
    file, _, line = place.rpartition(":")
    return (
        "Traceback (most recent call last):\n"
        '  File "train.py", line 90, in <module>\n    main()\n    ~~~~^^\n'
        f'  File "{file}", line {line}, in main\n    work()\n{last_line}\n'
    )


SYNTAX_ERROR = '  File "/app/train.py", line 1\n    x = = 1\n        ^\nSyntaxError: invalid syntax\n'
TYPE_ERROR = show("TypeError: 'int' object is not callable")
IGNORED = (
    "Exception ignored in: <function AtomicFunction.__del__ at 0x7f>\n"
    + show("TypeError: 'NoneType' object is not subscriptable", "atomic_function.py:291")
)  # fmt: skip
THREAD = "Exception in thread Thread-1:\n" + show("TypeError: 'int' object is not callable", "feed.py:9")
NO_RECORDS = (
    "tensorflow.python.framework.errors_impl.NotFoundError: {{function_node __wrapped__Iter}} a.tfrecord; "
)

MISTAKES = [
    (1, SYNTAX_ERROR),
    (1, SYNTAX_ERROR.strip()),
    (1, TYPE_ERROR),
    (1, f"epoch 1\n{TYPE_ERROR}\n{IGNORED}"),
    (1, show("ModuleNotFoundError: No module named 'nump'")),
    (1, show("ImportError: cannot import name 'fit' from 'model' (/app/model.py)")),
    (1, show("NameError: name 'modle' is not defined")),
    (1, show("AttributeError: module 'keras' has no attribute 'Modle'")),
    (1, show("FileNotFoundError: [Errno 2] No such file or directory: 'data.csv'")),
    (1, show(f"{NO_RECORDS}No such file or directory [Op:IteratorGetNext]")),
    (1, f"{show('ValueError: boom')}\nDuring handling of the above exception, another …:\n\n{TYPE_ERROR}"),
    (1, f"{TYPE_ERROR}W0000 00:00:1 service.cc:146] said by another thread\n"),
    (1, "/usr/bin/python3: No module named train\n"),
    (2, "python: can't open file '/app/tarin.py': [Errno 2] No such file or directory\n"),
    (126, ""),
    (127, "sh: 1: pyhton: not found\n"),
]
"""Exit codes and logs of what is the same at each start."""

OTHERS = [
    (1, ""),
    (1, show("ValueError: boom")),
    (1, show("OSError: [Errno 116] Stale file handle: 'data.csv'")),
    (1, show("tensorflow.python.framework.errors_impl.NotFoundError: Resource localhost/a does not exist.")),
    (1, show("tensorflow.python.framework.errors_impl.UnavailableError: failed to connect to all addresses")),
    (1, f"{TYPE_ERROR}\nDuring handling of the above exception, another …:\n\n{show('ValueError: boom')}"),
    (1, f"{show('ValueError: boom')}{IGNORED}"),
    (1, f"{show('ValueError: boom')}{THREAD}"),
    (1, "TypeError: said by no traceback\n"),
    (2, "usage: train.py [--epochs N]\ntrain.py: error: unrecognized arguments: --epoch\n"),
    (3, TYPE_ERROR),
    (137, TYPE_ERROR),
]
"""Exit codes and logs of what may not come again."""
