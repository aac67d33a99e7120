"""Patches for imports that take seconds, and that no update needs: they happen at the first use instead.

Of the eight seconds from the start of a worker to its first update, they took five.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import resolve_name
from pathlib import Path
from typing import Any

from mmf_win.compat.patch import Edit, Patch, edit, kept

_METRICS = "from sklearn.metrics import "
_METRICS_OF_RC12 = """from sklearn.metrics import (
    average_precision_score,
    f1_score,
    precision_recall_curve,
    precision_recall_fscore_support,
    roc_auc_score,
)"""
_TENSOR_PARALLEL = """from .integrations.tensor_parallel import (
    _get_parameter_tp_plan,
    distribute_model,
    initialize_tensor_parallelism,
    repack_weights,
    replace_state_dict_local_with_dtensor,
    shard_and_distribute_module,
    verify_tp_plan,
)"""
_DISABLE = "    import torch._dynamo\n\n    return torch._dynamo.disable(fn, recursive, reason=reason)"


class Late:
    """Stands for a function or class; imports it at the first call, attribute access or ``isinstance``."""

    def __init__(self, module: str, name: str) -> None:
        self._module, self._name = module, name

    def _real(self) -> Any:
        return getattr(import_module(self._module), self._name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._real()(*args, **kwargs)

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("__"):  # asked for by Python itself, such as by copy
            raise AttributeError(attribute)
        return getattr(self._real(), attribute)

    def __or__(self, other: object) -> Any:
        return Any  # in an annotation, which nobody checks

    __ror__ = __or__

    def __instancecheck__(self, value: object) -> bool:
        return isinstance(value, self._real())


def later(importer: str, statement: str) -> Edit:
    """The edit that puts off an import, whose statement is as it stands in the importer."""
    parsed = ast.parse(statement.strip()).body[0]
    assert isinstance(parsed, ast.ImportFrom)
    names = [alias.name for alias in parsed.names]
    indent = statement[: len(statement) - len(statement.lstrip())]
    lines = "\n" * statement.count("\n")
    module = resolve_name("." * parsed.level + (parsed.module or ""), importer.rpartition(".")[0])
    made = "; ".join(f"{name} = Late({module!r}, {name!r})" for name in names)
    return Edit(importer, statement, indent + made + lines, {"Late": Late})


def structure(find: Callable[[Any], Any], module_path: Any) -> Any:
    """What ``find`` finds in the files of transformers: only once in its 2,600 files, and not at each start.

    It is kept for the version and folder in which pip has installed it. One whose files may change under the
    same version, such as a checkout, is read each time.
    """
    path = Path(module_path)
    folder = path.parent if path.suffix else path
    of = _installed(folder) if folder.name == "models" else None  # that of one model is a few files
    return find(module_path) if of is None else kept("imports", of, lambda: find(module_path))


def _installed(models: Path) -> list[Any] | None:
    """What tells one installation of transformers from another; None of one that is not in site-packages."""
    package = models.parent
    with suppress(OSError, PackageNotFoundError):
        of = distribution(package.name)
        if Path(str(of.locate_file(package.name))) == package:
            return [str(models), of.version, models.stat().st_mtime_ns]
    return None


PATCHES = (
    Patch(
        name="late-compiler",
        problem="optimizers and torchvision bring torch's compiler, which takes 1.5 s and compiles nothing",
        library="torch >= 2.0",
        edits=(
            Edit(
                "torch._compile",
                "                import torch._dynamo\n\n",  # torch 2.1 has it elsewhere, less indented
                '                if "torch._dynamo" not in sys.modules: return fn(*args, **kwargs)\n'
                "                import torch._dynamo\n",
                {"sys": sys},
            ),
            # A class or a model is more than a function; torch._dynamo is imported as it is asked for.
            Edit(
                "torch.compiler",
                _DISABLE,
                "    if fn is None or type(fn).__name__ == 'function':\n"
                "        return torch._disable_dynamo(fn, recursive)\n" + _DISABLE.splitlines()[-1],
            ),
            Edit("torch.optim.optimizer", "        import torch._dynamo\n", "        pass\n"),
            Edit(
                "torch.optim.optimizer",
                "torch._dynamo.graph_break()",
                '"torch._dynamo" in sys.modules and torch._dynamo.graph_break()',
                {"sys": sys},
            ),
            Edit("transformers.modeling_utils", "@torch._dynamo.allow_in_graph", "@torch._disable_dynamo"),
            later("torchvision.ops.roi_align", "from torch._dynamo.utils import is_compile_supported"),
            later(
                "transformers.masking_utils",
                "    from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex",
            ),
        ),
        speed=True,
    ),
    Patch(
        name="late-shards",
        # The last one makes room for weights that are new, such as a head's.
        problem="transformers: what spreads a tensor over GPUs, and SymPy, take 1.6 s; MMF spreads none",
        library="transformers >= 4.50",
        edits=(
            later("transformers.modeling_utils", "    from torch.distributed.tensor import DTensor"),
            later("transformers.modeling_utils", _TENSOR_PARALLEL),
            later(
                "transformers.utils.generic",
                "    from ..model_debugging_utils import model_addition_debugger_context",
            ),
            Edit(
                "transformers.modeling_utils",
                'torch.empty_like(param, dtype=dtype, device="cpu")',
                'torch.empty(param.shape, dtype=dtype or param.dtype, device="cpu")',
            ),
        ),
        speed=True,
    ),
    Patch(
        name="late-science",
        problem="metrics: scikit-learn, SciPy and pandas take 2 s, and the first validation needs them",
        library="scikit-learn",
        edits=(
            later("mmf.modules.metrics", _METRICS + "average_precision_score, f1_score, roc_auc_score"),
            later("mmf.modules.metrics", _METRICS_OF_RC12),
            later("transformers.generation.candidate_generator", "    " + _METRICS + "roc_curve"),
            *(
                later(
                    f"transformers.loss.loss_{name}", "    from scipy.optimize import linear_sum_assignment"
                )
                for name in ("deformable_detr", "for_object_detection", "grounding_dino", "rt_detr")
            ),
        ),
        speed=True,
    ),
    Patch(
        name="import-structure",
        problem="transformers: reads all of its 2,600 files at each start",
        library="transformers >= 4.46",
        edits=edit(
            "transformers.utils.import_utils",
            "import_structure = create_import_structure_from_path(module_path)",
            "import_structure = structure(create_import_structure_from_path, module_path)",
            structure=structure,
        ),
        speed=True,
    ),
)
