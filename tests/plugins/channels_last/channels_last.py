"""Someone else's loader: the threads of ours, and images in the memory format that convolutions like."""

import torch

from benchsuite.storage.loaders import Delivered
from benchsuite.storage.loaders.threads import ThreadsLoader


class ChannelsLastLoader(ThreadsLoader):
    """Deliver images as NHWC in memory."""

    def __next__(self) -> Delivered:
        found = super().__next__()
        batch = {
            name: tensor.contiguous(memory_format=torch.channels_last) if tensor.dim() == 4 else tensor
            for name, tensor in found.batch.items()
        }
        return Delivered(batch, found.rows, found.epochs)
