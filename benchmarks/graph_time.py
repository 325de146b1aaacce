"""The time of GPU work inside a captured graph, where the host takes no part in it."""

from __future__ import annotations

import statistics
from collections.abc import Callable

import torch


def microseconds(work: Callable[[], object], passes: int) -> float:
    """Median time of one pass inside a graph of many."""
    side = torch.cuda.Stream()  # what autograd sets up must not be on the stream that is captured
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            work()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(passes):
            work()
    times = []
    for _ in range(20):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) * 1e3 / passes)
    return statistics.median(times[3:])
