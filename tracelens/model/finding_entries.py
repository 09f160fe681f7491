"""What a kind of finding is: an entry of the table of all kinds, `finding_kinds.KINDS`."""

from __future__ import annotations

from dataclasses import dataclass, field
from string import Formatter
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Category", "FindingKind", "Group", "Suppression", "find_field_names"]

Category = Literal["fault", "opportunity"]
Group = Literal["ranks", "network", "servers", "overlap", "whole job", "trace"]


@dataclass(frozen=True)
class Suppression:
    """Kinds that explain the same loss, so that one of them is reported in place of this one.

    One of them must save at least `min_share` of this one's own saving; if `is_summed`, all of them
    together. Without a share, they must name all its ranks.
    """

    kinds: tuple[str, ...]
    min_share: float | None = None
    is_summed: bool = False


@dataclass(frozen=True, kw_only=True)
class FindingKind:
    """An entry of `KINDS`.

    `sentence` is a `str.format` template with named fields, which the analysis gives as text, and
    `cases` are the templates of sentences for other cases. A field named `saving` is filled in from
    the finding. `action` is what to do next. `category` is null where it depends on the finding. A
    finding that names neither rank nor shard leads to the step with most time of the category
    `worst_step_category`. Of a kind that `names_hosts`, whole hosts are slow rather than ranks. One that
    `needs_all_ranks` is not judged where ranks were left out as asked. After one that `ends_job` the
    job does not go on.
    """

    kind: str
    title: str
    group: Group
    sentence: str
    action: str
    cases: Mapping[str, str] = field(default_factory=dict)
    category: Category | None = None
    worst_step_category: str | None = None
    suppression: Suppression | None = None
    names_hosts: bool = False
    needs_all_ranks: bool = False
    ends_job: bool = False

    @property
    def name(self) -> str:
        """Its title as within a sentence; abbreviations stay as they are."""
        title = self.title
        return title if title[1].isupper() else title[0].lower() + title[1:]

    def find_template(self, case: str = "") -> str:
        """Return the sentence of a case; without one, the main one."""
        return self.cases[case] if case else self.sentence

    def fill_in(self, case: str, fields: Mapping[str, str]) -> str:
        """Fill in the sentence of a case; all its fields must be given, and no others."""
        template = self.find_template(case)
        field_names = find_field_names(template)
        if set(fields) != field_names:
            raise ValueError(
                f"the sentence of {self.kind!r} has the fields {sorted(field_names)}; "
                f"given are {sorted(fields)}"
            )
        return template.format(**fields)


def find_field_names(template: str) -> set[str]:
    """Return the names of a template's fields."""
    return {name for _, name, _, _ in Formatter().parse(template) if name is not None}
