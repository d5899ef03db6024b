"""Tracebacks in every drawing that logs and notebooks hold: frames outermost first, each with its code, and the error."""

import pytest

from diag_kit.evidence.parsers import traceback
from diag_kit.evidence.text import Window, lines_of

OOM = "CUDA out of memory. Tried to allocate 2.00 GiB"

DRAWINGS = {
    "jupyter": (
        f"""OutOfMemoryError                          Traceback (most recent call last)
Cell In[22], line 29, in fit(net)
     28     out = net(x)
---> 29     loss = crit(out, y)
     30     loss.backward()

File ~/env/lib/python3.10/site-packages/torch/nn/modules/module.py:1501, in Module._call_impl(self, *args, **kwargs)
   1496 # If there are no hooks
   1500         or _global_forward_hooks or _global_forward_pre_hooks):
-> 1501     return forward_call(*args, **kwargs)

OutOfMemoryError: {OOM}""",
        "OutOfMemoryError",
        [
            ("<cell>", 29, "fit", "loss = crit(out, y)"),
            (
                "~/env/lib/python3.10/site-packages/torch/nn/modules/module.py", 1501, "Module._call_impl",
                "return forward_call(*args, **kwargs)",
            ),
        ],
    ),
    "colab with colours and links": (
        f"""\x1b[0;31mRuntimeError\x1b[0m                              Traceback (most recent call last)
\x1b[0;32m[<ipython-input-7-aa>](https://localhost:8080/#)\x1b[0m in \x1b[0;36m<cell line: 2>\x1b[0;34m()\x1b[0m
\x1b[1;32m      1\x1b[0m \x1b[0mx\x1b[0m
\x1b[0;32m----> 2\x1b[0;31m \x1b[0mtrainer\x1b[0m\x1b[0;34m.\x1b[0m\x1b[0mtrain\x1b[0m\x1b[0;34m(\x1b[0m\x1b[0;34m)\x1b[0m

9 frames
[/usr/lib/x/trainer.py](https://localhost:8080/#) in train(self)
    119     pass
--> 120         loss.backward()

\x1b[0;31mRuntimeError\x1b[0m: {OOM}""",
        "RuntimeError",
        [("<ipython-input-7-aa>", 2, "<cell line: 2>", "trainer.train()"), ("/usr/lib/x/trainer.py", 120, "train", "loss.backward()")],
    ),
    "older and hosted notebooks": (
        f"""RuntimeError                              Traceback (most recent call last)
Input In [5], in fit(net)
      1 for x in data:
----> 2     net(x)

File <command-3441>:12
     11 y = f(x)
---> 12 z = g(y)

RuntimeError: {OOM}""",
        "RuntimeError",
        [("<cell>", 2, "fit", "net(x)"), ("<command-3441>", 12, "", "z = g(y)")],
    ),
    "rich, with a wrapped path, a wrapped name and a box of locals": (
        f"""╭─────────────────────────────── Traceback (most recent call last) ────────────────────────────────╮
│ /home/u/project/with/a/long/path/that/needs/to/wrap/scripts/train_something_quite_long_n         │
│ ame.py:773 in <module>                                                                           │
│                                                                                                  │
│   771 if __name__ == "__main__":                                                                 │
│ ❱ 773     main()                                                                                 │
│ ╭───── locals ─────╮                                                                             │
│ │ a = 1            │                                                                             │
│ ╰──────────────────╯                                                                             │
│ /home/u/lib/torch/nn/modules/module.py:1501 in                                                   │
│ _call_impl                                                                                       │
│                                                                                                  │
│ ❱ 1501             return forward_call(*args, **kwargs)                                          │
╰──────────────────────────────────────────────────────────────────────────────────────────────────╯
OutOfMemoryError: {OOM}""",
        "OutOfMemoryError",
        [
            (
                "/home/u/project/with/a/long/path/that/needs/to/wrap/scripts/train_something_quite_long_name.py", 773, "<module>",
                "main()",
            ),
            ("/home/u/lib/torch/nn/modules/module.py", 1501, "_call_impl", "return forward_call(*args, **kwargs)"),
        ],
    ),
    "pytest": (
        f"""=================================== FAILURES ===================================
______________________________ test_train ______________________________

    def test_train():
        net = Net()
>       out = net(x)

tests/test_m.py:12:
_ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _
src/net.py:33: in forward
    return self.attn(x)
_ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _

self = Net(), x = tensor

    def softmax(self, x):
>       return x.softmax(-1)
E       torch.OutOfMemoryError: {OOM}

src/attn.py:12: OutOfMemoryError
=========================== short test summary info ============================""",
        "OutOfMemoryError",
        [
            ("tests/test_m.py", 12, "test_train", "out = net(x)"),
            ("src/net.py", 33, "forward", "return self.attn(x)"),
            ("src/attn.py", 12, "softmax", "return x.softmax(-1)"),
        ],
    ),
    "TorchScript, where a mark stands below the line that failed": (
        f"""Traceback of TorchScript, original code (most recent call last):
  File "net.py", line 33, in forward
    def forward(self, q, k):
        q = q * 2
        return torch.matmul(q, k)
               ~~~~~~~~~~~~ <--- HERE
RuntimeError: {OOM}""",
        "RuntimeError",
        [("net.py", 33, "forward", "return torch.matmul(q, k)")],
    ),
    "an exception group": (
        f"""    | Traceback (most recent call last):
    |   File "b.py", line 5, in h
    |     torch.empty(9)
    | torch.OutOfMemoryError: {OOM}""",
        "torch.OutOfMemoryError",
        [("b.py", 5, "h", "torch.empty(9)")],
    ),
    "loguru": (
        f"""Traceback (most recent call last):

  File "/a/train.py", line 12, in <module>
    main()
    └ <function main at 0x7f>

> File "/a/train.py", line 8, in main
    loss = net(x)
           │   └ tensor
           └ Net()

RuntimeError: {OOM}""",
        "RuntimeError",
        [("/a/train.py", 12, "<module>", "main()"), ("/a/train.py", 8, "main", "loss = net(x)")],
    ),
    "indented, as a launcher quotes it": (
        f"""  traceback : Traceback (most recent call last):
      File "/a/train.py", line 12, in <module>
        main()
      File "/b.py", line 3, in g
        x()
    torch.OutOfMemoryError: {OOM}""",
        "torch.OutOfMemoryError",
        [("/a/train.py", 12, "<module>", "main()"), ("/b.py", 3, "g", "x()")],
    ),
    "a call over several lines, with carets": (
        f"""Traceback (most recent call last):
  File "/a/y.py", line 30, in h
    z = torch.baddbmm(
        q, k,
        v)
    ^^^^^^^^^^
RuntimeError: {OOM}""",
        "RuntimeError",
        [("/a/y.py", 30, "h", "z = torch.baddbmm( q, k, v)")],
    ),
    "Python 2, where a frame has no code": (
        f"""Traceback (most recent call last):
  File "train.py", line 5, in <module>
    loss.backward()
  File "/usr/lib/python2.7/site-packages/torch/autograd/x.py", line 9, in backward_extended
RuntimeError: {OOM}""",
        "RuntimeError",
        [("train.py", 5, "<module>", "loss.backward()"), ("/usr/lib/python2.7/site-packages/torch/autograd/x.py", 9, "backward_extended", "")],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("text", "exception", "frames"), DRAWINGS.values(), ids=DRAWINGS)
def test_frames_and_error_of_each_drawing(text, exception, frames):
    """Path, line, function and code of each frame, and the exception with its message, as drawn."""
    [fact] = traceback.parse(Window("run.log", lines_of(text.encode())))
    assert [(frame.path, frame.line, frame.function, frame.code) for frame in fact.frames] == frames
    assert (fact.exception, fact.message) == (exception, OOM)
    assert fact.source.line < fact.end_line


def test_chained_exceptions_are_separate_in_file_order():
    """An error in a handler does not swallow the error that it handled."""
    one = 'Traceback (most recent call last):\n  File "a.py", line 3, in f\n    g()\nValueError: first\n'
    text = f"{one}\nDuring handling of the above exception, another exception occurred:\n\n{one.replace('ValueError: first', 'OSError: then')}"
    found = list(traceback.parse(Window("run.log", lines_of(text.encode()))))
    assert [(fact.exception, fact.message) for fact in found] == [("ValueError", "first"), ("OSError", "then")]


def test_a_list_of_places_is_no_traceback():
    """Lines of grep or of a compiler name files and lines, and are no frames."""
    text = "src/attn.py:12: warning: unused\nsrc/net.py:33:\nsrc/net.py:34: in forward\n"
    assert list(traceback.parse(Window("run.log", lines_of(text.encode())))) == []
