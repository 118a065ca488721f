"""One call of an operation, as its handler gets it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hpresume.api.rules import check_cluster
from hpresume.api.tokens import PageTokens
from hpresume.provision.page import Page, Position
from hpresume.provision.service import ClusterRecord, ClusterService, Document

#: Entries of a page where the request does not say; the model's largest MaxResults.
PAGE_SIZE = 100


@dataclass(frozen=True)
class Call:
    """A request that the walker and the request rules have found good."""

    operation: str
    request: Document
    service: ClusterService
    tokens: PageTokens

    @property
    def cluster_ref(self) -> str:
        """Name or ARN of the cluster that is meant."""
        return str(self.request["ClusterName"])

    @property
    def limit(self) -> int:
        """Most entries of the page."""
        return int(self.request.get("MaxResults", PAGE_SIZE))

    def text(self, name: str) -> str:
        """A member that is a string; empty where it is absent."""
        return str(self.request.get(name, ""))

    def time(self, name: str) -> float | None:
        """A member that is a time, in Unix time (s)."""
        value = self.request.get(name)
        return None if value is None else float(value)

    def descending(self, default: bool) -> bool:
        """The order that is asked for."""
        order = self.request.get("SortOrder")
        return default if order is None else order == "Descending"

    def start(self, arn: str = "") -> Position | None:
        """Where the page begins; ``arn`` is the cluster whose list it is."""
        return self.tokens.open(self.operation, arn, self.request)

    def answer(
        self, key: str, page: Page[Any], items: list[dict[str, Any]], arn: str = ""
    ) -> dict[str, Any]:
        """A page as an answer, with the token for the next one if others follow."""
        answer: dict[str, Any] = {key: items}
        if page.next is not None:
            answer["NextToken"] = self.tokens.seal(self.operation, arn, self.request, page.next)
        return answer

    def guard(self, cluster: ClusterRecord) -> None:
        """The cluster rules of the operation, for the service to ask in its transaction."""
        check_cluster(self.operation, self.request, cluster)
