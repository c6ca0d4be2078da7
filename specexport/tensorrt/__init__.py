"""TensorRT on the build side: lowering, compilation and judgement of engines for `tensorrt` and `tensorrt_rtx`."""
