# SPDX-License-Identifier: Apache-2.0
import gpurx

with gpurx.safe_open("http://127.0.0.1:9001/model.safetensors", "np") as file:  # "pt", device="cuda:0": torch, on a GPU
    for name, tensor in file:
        print(name, tensor.shape)
