"""A prefill and a decode process on loopback, made of the installed SGLang and the installed Mooncake engine.

`run.main` is the command line, `pair.Pair` the Python interface, `scenarios` what can be asked of a pair. Nothing is
imported here: the command line has to explain a missing SGLang, NumPy or Mooncake, not fail to import.
"""
