"""GPU kernels in Triton, and the functions on tensors that launch them.

A module has the functions of one kernel or of a few that belong together: `transport`, `norm`, `last_layer`,
`adam`, `chacha`. Longer kernels are beside it, in `_triton_*`. `launch` has what all of them share, and says
where they can run: plain code elsewhere in the package does the same work where they cannot.
"""
