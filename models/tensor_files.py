"""Write safetensors files: atomically, and as readable as the files beside them."""

import stat
from collections.abc import Mapping
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor


def write_tensors(tensors: Mapping[str, Tensor], path: Path, *, metadata: Mapping[str, str] | None = None) -> None:
    """Atomically write tensors, replacing an existing file, which may still be mapped into memory."""
    staged = path.with_name(f"{path.name}.staged")
    staged.unlink(missing_ok=True)
    # The library makes files that only their owner can read; a new file has the mode that the umask allows.
    staged.touch()
    mode = stat.S_IMODE(staged.stat().st_mode)
    save_file(dict(tensors), staged, metadata=None if metadata is None else dict(metadata))
    staged.chmod(mode)
    staged.replace(path)
