"""The CUDA backend: kernels built at run time by NVRTC, device memory, streams, and the loader's stages on a GPU.

Importing this package needs neither a GPU nor a driver nor the ``cuda13``/``cuda12`` extras; using it does, and says
which one is missing.
"""
