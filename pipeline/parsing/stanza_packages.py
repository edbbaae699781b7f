"""Stanza packages on disk: find the files that a configuration names, identify them and load them."""

import json
import pickle
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.metadata import version
from pathlib import Path
from threading import get_ident
from types import ModuleType
from typing import Any, Literal

from torch.optim import Optimizer
from typing_extensions import override

from concord.models.checkpoint import pick_device
from concord.models.config import ConfigError
from concord.pipeline.config import ParserConfig
from concord.pipeline.errors import ModelError
from concord.pipeline.identity import ComponentIdentity
from concord.pipeline.storage.files import file_sha256

EMBEDDED_PACKAGE = "parser_en"
PARSING_VERSION = 1
"""To be raised whenever the modules of this folder would give other words for the same weights."""

_EMBEDDED_FOLDER = Path(__file__).resolve().parents[2] / "models" / "pretrained" / EMBEDDED_PACKAGE
_PROCESSORS = ("tokenize", "mwt", "pos", "lemma", "depparse")
_STANZA_MAX_SEQLEN = 1_000_000
"""Longer paragraphs, and tokens, are changed by Stanza: it cuts paragraphs into windows that depend on what else is in
the batch, and replaces tokens by ``<UNK>``."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StanzaPackage:
    """A Stanza package on disk: the folder of resources.json, the package's processors, and their files."""

    folder: Path
    language: str
    name: str
    processors: tuple[str, ...]
    files: tuple[Path, ...]


def find_package(config: ParserConfig) -> StanzaPackage:
    """Find the package that a configuration names; ModelError if it is not installed."""
    if config.package == EMBEDDED_PACKAGE:
        if config.language != "en":
            raise ModelError(f"parser.package: {EMBEDDED_PACKAGE} is for language 'en', not {config.language!r}")
        return _read_package(_EMBEDDED_FOLDER, language="en", name="default")
    from stanza.resources.common import DEFAULT_MODEL_DIR

    folder = DEFAULT_MODEL_DIR if config.directory is None else config.directory
    return _read_package(Path(folder), language=config.language, name=config.package)


def identity_of(config: ParserConfig, package: StanzaPackage) -> ComponentIdentity:
    """Return name, version and digest of a package used with a configuration: equal digests, equal parses."""
    decisive = {
        "stanza": version("stanza"),
        "parsing": PARSING_VERSION,
        "language": config.language,
        "package": config.package,
        "sentence_cap": config.sentence_cap,
        "files": {path.relative_to(package.folder).as_posix(): file_sha256(path) for path in package.files},
    }
    digest = sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()
    return ComponentIdentity(name=f"stanza/{config.package}", version=version("stanza"), digest=digest)


def choose_device(config: ParserConfig) -> Literal["cpu", "cuda"]:
    """Return the device to parse on; ModelError if cuda is configured and not available."""
    try:
        return pick_device(config.device, key="parser.device")
    except ConfigError as error:
        raise ModelError(str(error)) from error


def load_pipeline(package: StanzaPackage, *, device: Literal["cpu", "cuda"]) -> Any:
    """Load a package as a Stanza pipeline; nothing is downloaded. ModelError if Stanza cannot read it."""
    with _without_unused_imports():
        import stanza

    try:
        with _without_optimizers():
            return stanza.Pipeline(
                lang=package.language,
                dir=str(package.folder),
                package=package.name,
                processors=",".join(package.processors),
                download_method=None,
                use_gpu=device == "cuda",
                verbose=False,
                tokenize_max_seqlen=_STANZA_MAX_SEQLEN,
                # Its default is set by each package; the repair costs a third of the speed for 0.7 % of the words.
                depparse_resolve_head_constraints=False,
            )
    except (OSError, EOFError, RuntimeError, ValueError, KeyError, pickle.UnpicklingError) as error:
        raise ModelError(
            f"parser.package: Stanza cannot load {package.name!r} for {package.language!r} from {package.folder}: "
            f"{type(error).__name__}: {error}; install the package again"
        ) from error


# Stanza does without the first if they are missing; the others it imports in modules of which nothing here calls them.
_HIDDEN = frozenset({"transformers", "IPython"})
_DEFERRED = frozenset({"emoji", "networkx", "requests"})


class _DeferredModule(ModuleType):
    """Stands for a module, which it imports when something of it is used."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # the import system asks for what the module may not have
            raise AttributeError(name)
        _forget(self)
        return getattr(import_module(self.__name__), name)


class _Deferred(Loader):
    """Loads a module as a ``_DeferredModule``."""

    @override
    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _DeferredModule(spec.name)

    @override
    def exec_module(self, module: ModuleType) -> None:
        del module


def _forget(module: ModuleType) -> None:
    """Let the next import of a deferred module find the module itself."""
    if sys.modules.get(module.__name__) is module:
        del sys.modules[module.__name__]


class _UnusedImports(MetaPathFinder):
    """Hides some modules, and defers others, for the imports of the thread that makes it."""

    def __init__(self) -> None:
        self._thread = get_ident()
        self._deferred: set[str] = set()

    @override
    def find_spec(self, fullname: str, path: Sequence[str] | None, target: object = None) -> ModuleSpec | None:
        if get_ident() != self._thread:
            return None
        if fullname in _HIDDEN:
            raise ModuleNotFoundError(f"No module named {fullname!r}", name=fullname)
        if fullname not in _DEFERRED - self._deferred:
            return None
        self._deferred.add(fullname)
        spec = PathFinder.find_spec(fullname, path)
        if spec is not None:
            spec.loader = _Deferred()
        return spec


@contextmanager
def _without_unused_imports() -> Iterator[None]:
    """Import Stanza without libraries that it does not use here, which are a third of its import."""
    finder = _UnusedImports()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for name in _DEFERRED:
            if isinstance(module := sys.modules.get(name), _DeferredModule):
                _forget(module)


class _UnusedOptimizer(Optimizer):
    """Has the parameters and learning rates that a trainer of Stanza plans with, and never steps."""

    def __init__(self, name: str, parameters: Any, *, lr: float, **options: object) -> None:
        del name, options
        super().__init__(parameters, {"lr": lr})

    @override
    def add_param_group(self, param_group: dict[str, Any]) -> None:
        # That of torch imports torch's compiler, in a second or more.
        self.param_groups.append(self.defaults | param_group)


@contextmanager
def _without_optimizers() -> Iterator[None]:
    """Load Stanza's networks without the optimizers that their trainers build even where nothing is trained."""
    from stanza.models.common import utils

    build = utils.dispatch_optimizer
    utils.dispatch_optimizer = _UnusedOptimizer
    try:
        yield
    finally:
        utils.dispatch_optimizer = build


def _read_package(folder: Path, *, language: str, name: str) -> StanzaPackage:
    """Look up a package's processors and files, with those they depend on, in resources.json."""
    index = folder / "resources.json"
    try:
        known: dict[str, Any] = json.loads(index.read_text(encoding="utf-8"))
        language = known[language].get("alias", language)
        resources: dict[str, Any] = known[language]
    except FileNotFoundError:
        raise _not_installed(folder, language=language, name=name, missing=str(index)) from None
    except (ValueError, KeyError, AttributeError):
        raise _not_installed(folder, language=language, name=name, missing=f"{language!r} in {index}") from None
    processors, files = [], set()
    for processor in _PROCESSORS:
        chosen = _model_name(resources, processor, package=name)
        if chosen is None and processor == "mwt":  # many languages have no multi-word tokens
            continue
        if chosen is None:
            missing = f"package {name!r} with a {processor} model for {language!r} in {index}"
            raise _not_installed(folder, language=language, name=name, missing=missing)
        processors.append(processor)
        files.add(folder / language / processor / f"{chosen}.pt")
        for needed in resources.get(processor, {}).get(chosen, {}).get("dependencies", []):
            files.add(folder / language / needed["model"] / f"{needed['package']}.pt")
    for path in sorted(files):
        if not path.is_file():
            raise _not_installed(folder, language=language, name=name, missing=str(path))
    return StanzaPackage(
        folder=folder, language=language, name=name, processors=tuple(processors), files=tuple(sorted(files))
    )


def _model_name(resources: dict[str, Any], processor: str, *, package: str) -> str | None:
    """Return the model of a package for a processor: one with the package's name wins over one that it lists."""
    if package in resources.get(processor, {}):
        return package
    listed: str | None = resources.get("packages", {}).get(package, {}).get(processor)
    return listed


def _not_installed(folder: Path, *, language: str, name: str, missing: str) -> ModelError:
    return ModelError(
        f"parser.package: Stanza's package {name!r} for {language!r} is not installed: there is no {missing}. "
        f"Nothing is downloaded automatically. Install it with: "
        f'python -c "import stanza; stanza.download({language!r}, package={name!r}, model_dir={str(folder)!r})" '
        f"- or use the embedded one: parser.package={EMBEDDED_PACKAGE}"
    )
