# SPDX-License-Identifier: Apache-2.0
"""Processes that form a process group, over Gloo or NCCL, for the tests of octavo.distributed.

Starting a process that imports PyTorch takes seconds. So the processes are forks of one that has imported
what they need, and they stay and are sent one function after the other.
"""

import contextlib
import datetime
import multiprocessing
import tempfile
import traceback

TIMEOUT_S = 240
# compile_fx loads the hundreds of modules that the first compilation of a process needs.
PRELOADED = ["torch", "torch._dynamo", "torch._inductor.compile_fx", "torch.distributed.tensor",
             "torch.distributed.fsdp", "torch.utils.checkpoint", "pytest", "octavo.distributed", "octavo.transformers",
             "transformers.models.llama.modeling_llama"]


def _serve(rank, world, backend, store, pipe):
    import torch
    import torch.distributed as dist

    import octavo

    torch.set_num_threads(1)
    octavo.set_cpu_threads(1)
    if torch.cuda.is_available():
        torch.cuda.set_device(rank % torch.cuda.device_count())
    dist.init_process_group(backend, init_method=f"file://{store}", rank=rank, world_size=world,
                            timeout=datetime.timedelta(seconds=TIMEOUT_S))
    while (task := pipe.recv()) is not None:
        function, arguments = task
        try:
            torch.manual_seed(0)
            pipe.send((True, function(*arguments)))
        except Exception as error:
            pipe.send((False, (type(error).__name__, str(error), traceback.format_exc())))
    dist.destroy_process_group()


class Ranks:
    """`world` processes. Functions are those of a module that the processes can import. CUDA may not be used before a
    fork, even by an import: `start` is "spawn" for tests on GPUs."""

    def __init__(self, world, backend="gloo", start="forkserver"):
        context = multiprocessing.get_context(start)
        if start == "forkserver":
            context.set_forkserver_preload(PRELOADED)  # those of them that are installed
        self.folder = tempfile.TemporaryDirectory()
        self.pipes, self.processes = [], []
        for rank in range(world):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, daemon=True,
                                      args=(rank, world, backend, self.folder.name + "/store", theirs))
            process.start()
            theirs.close()
            self.pipes.append(ours)
            self.processes.append(process)

    def outcomes(self, function, *arguments):
        """Of each rank (True, result), or (False, (type, message, traceback)), or None if it ended."""
        for pipe in self.pipes:
            pipe.send((function, arguments))
        return [self._receive(pipe) for pipe in self.pipes]

    def _receive(self, pipe):
        if not pipe.poll(2 * TIMEOUT_S):
            raise TimeoutError("a rank does not answer")
        try:
            return pipe.recv()
        except EOFError:
            return None

    def run(self, function, *arguments):
        """The result of each rank."""
        outcomes = self.outcomes(function, *arguments)
        failed = [outcome[1][2] for outcome in outcomes if not outcome[0]]
        assert not failed, failed[0]
        return [outcome[1] for outcome in outcomes]

    def close(self):
        for pipe in self.pipes:
            with contextlib.suppress(OSError):  # a rank that has ended has closed its pipe
                pipe.send(None)
        for process in self.processes:
            process.join(60)
            if process.is_alive():
                process.kill()
        self.folder.cleanup()
