"""Patches that delay slow imports until their first use.

Training does not need these imports. They took five of the eight seconds from the start of a worker to its
first update.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from importlib import import_module
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import resolve_name
from pathlib import Path
from types import ModuleType
from typing import Any

from mmf_win.compat.patch import Edit, Patch, load_or_compute, single_edit

_DISABLE_SOURCE = "    import torch._dynamo\n\n    return torch._dynamo.disable(fn, recursive, reason=reason)"


class LazyModule(ModuleType):
    """Module with a function for any name, which imports the real module when it is called."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # Python itself looks up such names
            raise AttributeError(name)
        return partial(_import_and_call, self.__name__, name)


def _import_and_call(module: str, name: str, *args: Any, **kwargs: Any) -> Any:
    return getattr(import_module(module), name)(*args, **kwargs)


def defer_import(importer: str, module: str, names: str = "") -> Edit:
    """Delay an import statement of a module until one of the imported names is called.

    Registers a :class:`LazyModule` in ``sys.modules`` at once. The edit makes the statement import from it.

    Args:
        importer: Module that contains the statement ``from module import names``.
        module: The imported module, absolute or relative, as written in the statement.
        names: First characters of ``names``; by default, all imports from ``module`` are delayed.

    Returns:
        The edit of the statement.
    """
    real = resolve_name(module, importer.rpartition(".")[0])
    lazy = f"{__name__}.{real}"
    sys.modules[lazy] = LazyModule(real)
    return Edit(importer, f"from {module} import {names}", f"from {lazy} import {names}")


def cached_import_structure(read_structure: Callable[[Any], Any], module_path: Any) -> Any:
    """Return transformers' import structure from a cache, without reading its 2,600 files.

    The cache is valid for one version and one folder in which pip installed it. An installation whose files
    may change without a new version, such as a checkout, is read each time.

    Args:
        read_structure: Function of transformers that reads the files.
        module_path: Its argument.

    Returns:
        Its result.
    """
    path = Path(module_path)
    models = path.parent if path.suffix else path
    package = models.parent
    with suppress(OSError, PackageNotFoundError):
        installed = distribution(package.name)
        is_installed = Path(str(installed.locate_file(package.name))) == package
        if is_installed and models.name == "models":  # the structure of a single model has few files
            cache_key = [str(models), installed.version, models.stat().st_mtime_ns]
            return load_or_compute("imports", cache_key, lambda: read_structure(module_path))
    return read_structure(module_path)


PATCHES = (
    Patch(
        name="late-imports",
        problem="importing torch._dynamo, DTensor, SymPy, scikit-learn, SciPy and pandas takes 5 s",
        edits=(
            defer_import("mmf.modules.metrics", "sklearn.metrics"),
            defer_import("transformers.generation.candidate_generator", "sklearn.metrics"),
            *(
                defer_import(f"transformers.loss.loss_{name}", "scipy.optimize")
                for name in ("deformable_detr", "for_object_detection", "grounding_dino", "rt_detr")
            ),
            defer_import("torchvision.ops.roi_align", "torch._dynamo.utils"),
            defer_import("transformers.masking_utils", "torch._dynamo._trace_wrapped_higher_order_op"),
            defer_import("transformers.utils.generic", "..model_debugging_utils"),
            # Not in versions that import a constant first: only functions and classes can be lazy.
            defer_import("transformers.modeling_utils", ".integrations.tensor_parallel", "(\n    _get"),
            Edit("transformers.modeling_utils", "\n_is_dtensor_available = ", "\n_is_dtensor_available = False and "),
            Edit("transformers.modeling_utils", "@torch._dynamo.allow_in_graph", "@torch._disable_dynamo"),
            Edit(  # allocates new weights, such as those of a head
                "transformers.modeling_utils",
                'torch.empty_like(param, dtype=dtype, device="cpu")',
                'torch.empty(param.shape, dtype=dtype or param.dtype, device="cpu")',
            ),
            Edit(
                "torch._compile",
                "                import torch._dynamo\n\n",  # torch 2.1 has it with less indentation
                '                if "torch._dynamo" not in sys.modules: return fn(*args, **kwargs)\n'
                "                import torch._dynamo\n",
                {"sys": sys},
            ),
            # For classes and models, torch._dynamo is still imported.
            Edit(
                "torch.compiler",
                _DISABLE_SOURCE,
                "    if fn is None or type(fn).__name__ == 'function':\n"
                "        return torch._disable_dynamo(fn, recursive)\n" + _DISABLE_SOURCE.splitlines()[-1],
            ),
            Edit("torch.optim.optimizer", "        import torch._dynamo\n", "        pass\n"),
            Edit(
                "torch.optim.optimizer",
                "torch._dynamo.graph_break()",
                '"torch._dynamo" in sys.modules and torch._dynamo.graph_break()',
                {"sys": sys},
            ),
        ),
        is_optimization=True,
    ),
    Patch(
        name="import-structure",
        problem="transformers: reads all its 2,600 files at each start",
        library="transformers >= 4.46",
        edits=single_edit(
            "transformers.utils.import_utils",
            "import_structure = create_import_structure_from_path(module_path)",
            "import_structure = cached_import_structure(create_import_structure_from_path, module_path)",
            cached_import_structure=cached_import_structure,
        ),
        is_optimization=True,
    ),
)
