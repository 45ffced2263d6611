"""Two contracts for import-linter: pure rooms, and no circular imports.

Both build their own graph of imports, whatever `exclude_type_checking_imports` says for the other contracts: an import for
annotations alone makes no module impure, but it can be part of a circle.
"""

from __future__ import annotations

from typing import Any

import grimp
from importlinter import Contract, ContractCheck, fields, output


class PureRoomsContract(Contract):
    """Whole packages are pure, except for the listed modules.

    A pure module imports no forbidden module and no module of ours that does: it has no I/O, clock, threads or random numbers, so
    a test can call it without a loop and always gets the same result. A listed module that has become pure breaks the contract
    too, so that the list stays true.

    Options: `packages` that are pure; `impure`, their modules that are not; `neutral`, modules that every module may import;
    `forbidden`.
    """

    packages = fields.SetField(subfield=fields.StringField())
    impure = fields.SetField(subfield=fields.StringField())
    neutral = fields.SetField(subfield=fields.StringField())
    forbidden = fields.SetField(subfield=fields.StringField())

    def check(self, graph: grimp.ImportGraph, verbose: bool) -> ContractCheck:
        """Searches a chain of imports from each module of the packages to a forbidden module."""
        packages, impure, neutral, forbidden = map(_strings, (self.packages, self.impure, self.neutral, self.forbidden))
        runtime = grimp.build_graph(
            "wirekafka", cache_dir=None, include_external_packages=True, exclude_type_checking_imports=True
        )
        for module in neutral:
            for imported in runtime.find_modules_directly_imported_by(module):
                runtime.remove_import(importer=module, imported=imported)
        modules = {each for each in runtime.modules if _is_in(each, packages)}
        chains = [chain for module in sorted(modules) if (chain := _chain_to(runtime, module, forbidden)) is not None]
        found = {chain[0] for chain in chains}
        broken = [chain for chain in chains if chain[0] not in impure]
        stale = sorted(impure - found)
        return ContractCheck(kept=not broken and not stale, metadata={"broken": broken, "stale": stale})

    def render_broken_contract(self, check: ContractCheck) -> None:
        """Prints each chain, and each listed module that is pure."""
        metadata: dict[str, Any] = check.metadata
        for chain in metadata["broken"]:
            output.print_error(" -> ".join(chain))
        for module in metadata["stale"]:
            output.print_error(f"{module} is listed as impure, and is pure or does not exist: remove it from the list")


class AcyclicModulesContract(Contract):
    """No module imports itself through other modules, imports for annotations included.

    import-linter's own `acyclic_siblings` takes a package for one module, so it reports a circle if two packages import different
    modules of each other. The top package is left out: every module imports it, and it imports the modules of its public names.
    """

    def check(self, graph: grimp.ImportGraph, verbose: bool) -> ContractCheck:
        """Removes modules without remaining imports until no such module is left; the rest leads into a circle."""
        whole = grimp.build_graph("wirekafka", cache_dir=None, exclude_type_checking_imports=False)
        imported = {module: whole.find_modules_directly_imported_by(module) - {"wirekafka"} for module in whole.modules}
        while leaves := {module for module, others in imported.items() if not others}:
            imported = {module: others - leaves for module, others in imported.items() if module not in leaves}
        circle = _circle_in(imported) if imported else ()
        return ContractCheck(kept=not circle, metadata={"circle": circle})

    def render_broken_contract(self, check: ContractCheck) -> None:
        """Prints one circle."""
        metadata: dict[str, Any] = check.metadata
        output.print_error(" -> ".join(metadata["circle"]))


def _circle_in(imported: dict[str, set[str]]) -> tuple[str, ...]:
    """Follows imports until a module comes again; each module has at least one import."""
    path: list[str] = [min(imported)]
    while True:
        following = min(imported[path[-1]])
        if following in path:
            return (*path[path.index(following) :], following)
        path.append(following)


def _strings(found: Any) -> set[str]:
    return set(found)


def _is_in(module: str, packages: set[str]) -> bool:
    return ".tests" not in module and any(module == each or module.startswith(f"{each}.") for each in packages)


def _chain_to(graph: grimp.ImportGraph, module: str, forbidden: set[str]) -> tuple[str, ...] | None:
    for each in sorted(forbidden & graph.modules):
        chain = graph.find_shortest_chain(module, each)
        if chain is not None:
            return tuple(chain)
    return None
