"""A read-only view of the jobs, with what an operator may do about them: retry, cancel, run now."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.utils import quote
from django.contrib.admin.views.main import SEARCH_VAR
from django.core.paginator import Paginator
from django.http import HttpRequest
from django.urls import reverse
from django.utils.functional import cached_property
from django.utils.html import format_html, format_html_join
from django.utils.safestring import mark_safe

from queuert.app import context_of
from queuert.contrib.django.conf import project_queue
from queuert.contrib.django.models import Job
from queuert.errors import InvalidJobIdError, QueuertError

MOST_COUNTED = 10_000
MOST_LINKED = 100


class CappedPaginator(Paginator):
    """Counting all of a large table would take longer than showing a page of it."""

    @cached_property
    def count(self) -> int:
        rows: Any = self.object_list
        return int(rows.order_by()[:MOST_COUNTED].count())


class _Filter(admin.SimpleListFilter):
    """Filters by a name; the choice is what the statistics know of, so that no large table is searched for it."""

    def names(self) -> set[str]:
        raise NotImplementedError

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        given = request.GET.get(str(self.parameter_name))
        return [(name, name) for name in sorted(self.names() | ({given} if given else set()))]

    def queryset(self, request: HttpRequest, queryset: Any) -> Any:
        return queryset if self.value() is None else queryset.filter(**{str(self.parameter_name): self.value()})


class TypeFilter(_Filter):
    title = "type"
    parameter_name = "type_name"

    def names(self) -> set[str]:
        queue = project_queue()
        return {job_type.name for job_type in queue.types} | set(queue.stats().by_type)


class ErrorCodeFilter(_Filter):
    title = "error code"
    parameter_name = "error_code"

    def names(self) -> set[str]:
        return {code for code, _ in project_queue().stats().error_codes}


@admin.register(Job)
class JobAdmin(admin.ModelAdmin):
    list_display = ("type_name", "status", "attempt", "scheduled_at", "leased_by", "error_code", "id")
    list_filter = ("status", TypeFilter, ErrorCodeFilter)
    search_fields = ("=id", "=chain_id", "=type_name", "=error_code")
    search_help_text = "An id, a type or an error code, written out."
    ordering = ("-created_at", "-id")
    actions = ("retry", "cancel", "run_now")
    paginator = CappedPaginator
    show_full_result_count = False
    list_per_page = 50

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> list[str]:
        fields = ["chain" if field.name == "chain_id" else field.name for field in Job._meta.fields]
        return [*fields, "jobs_of_the_chain", "blockers", "blocks", "attempts_made", "timeline"]

    def get_fields(self, request: HttpRequest, obj: Any = None) -> list[str]:
        return self.get_readonly_fields(request, obj)

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Any:
        """A malformed id is one that is not there; PostgreSQL would refuse to compare it."""
        return super().get_object(request, object_id, from_field) if _is_id(object_id) else None

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> Any:
        if any(not _is_id(each) for each in request.POST.getlist(ACTION_CHECKBOX_NAME)):
            chosen = request.POST.copy()
            chosen.setlist(ACTION_CHECKBOX_NAME, [each for each in chosen.getlist(ACTION_CHECKBOX_NAME) if _is_id(each)])
            request.POST = chosen
        return super().changelist_view(request, extra_context)

    def get_search_fields(self, request: HttpRequest) -> tuple[str, ...]:
        words = request.GET.get(SEARCH_VAR, "").split()
        return tuple(f for f in self.search_fields if not f.endswith("id") or all(_is_id(word.strip("\"'")) for word in words))

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_operate_permission(self, request: HttpRequest) -> bool:
        """Retrying and cancelling need the permission to change jobs, although nothing can be edited here."""
        return bool(request.user.has_perm("queuert.change_job"))

    @admin.display(description="chain")
    def chain(self, job: Job) -> Any:
        return self._link(job.chain_id, f"{job.chain_type_name} {job.chain_id}")

    @admin.display(description="jobs of the chain")
    def jobs_of_the_chain(self, job: Job) -> Any:
        page = project_queue().list_jobs(chain_ids=[job.chain_id], order="asc", limit=MOST_LINKED)
        return self._links((each.id, f"{each.type_name} {each.id}", each.status) for each in page.items)

    @admin.display(description="waits for")
    def blockers(self, job: Job) -> Any:
        found = project_queue().get_job_blockers(job.id)
        return self._links((each.id, f"{each.type_name} {each.id}", each.status) for each in found)

    @admin.display(description="is waited for by")
    def blocks(self, job: Job) -> Any:
        page = project_queue().list_blocked_jobs(job.chain_id, limit=MOST_LINKED)
        return self._links((each.id, f"{each.type_name} {each.id}", each.status) for each in page.items)

    @admin.display(description="attempts that ended")
    def attempts_made(self, job: Job) -> Any:
        return _table(
            (each.attempt, each.finished_at.isoformat(), each.outcome, each.worker_id, each.error_code, each.error_detail)
            for each in project_queue().attempts(job.id, limit=MOST_LINKED)
        )

    @admin.display(description="timeline")
    def timeline(self, job: Job) -> Any:
        entries = project_queue().timeline(job.id, limit=MOST_LINKED)
        return _table((each.at.isoformat(), each.event, each.actor, each.detail.get("reason")) for each in entries)

    def _link(self, identity: str, text: str) -> Any:
        url = reverse(f"{self.admin_site.name}:queuert_job_change", args=[quote(identity)])
        return format_html('<a href="{}">{}</a>', url, text)

    def _links(self, found: Iterable[tuple[str, str, str]]) -> Any:
        return (
            format_html_join(mark_safe("<br>"), "{} {}", ((self._link(one, text), state) for one, text, state in found)) or "-"
        )

    @admin.action(description="Retry the chains of the selected jobs", permissions=["operate"])
    def retry(self, request: HttpRequest, queryset: Any) -> None:
        chains = dict.fromkeys(job.chain_id for job in queryset)
        self._act(request, chains, project_queue().retry_chain, ("chain", "chains"), "retried")

    @admin.action(description="Cancel the chains of the selected jobs", permissions=["operate"])
    def cancel(self, request: HttpRequest, queryset: Any) -> None:
        chains = dict.fromkeys(job.chain_id for job in queryset)
        self._act(request, chains, project_queue().cancel_chain, ("chain", "chains"), "cancelled")

    @admin.action(description="Run the selected jobs now", permissions=["operate"])
    def run_now(self, request: HttpRequest, queryset: Any) -> None:
        """Jobs that are scheduled for later, or back off, are due at once."""
        self._act(request, [job.id for job in queryset], project_queue().trigger_job, ("job", "jobs"), "made due")

    def _act(self, request: HttpRequest, ids: Iterable[str], act: Callable[..., Any], what: tuple[str, str], done: str) -> None:
        """Each by itself: one that cannot be acted on does not keep the others from it."""
        acted, actor = 0, f"admin:{request.user.get_username()}"
        for identity in ids:
            try:
                act(identity, actor=actor)
            except QueuertError as error:
                self.message_user(request, str(error), messages.WARNING)
            else:
                acted += 1
        self.message_user(request, f"{acted} {what[acted != 1]} {done}.", messages.SUCCESS if acted else messages.INFO)


def _table(rows: Iterable[tuple[Any, ...]]) -> Any:
    lines = [tuple("" if cell is None else cell for cell in row) for row in rows]
    if not lines:
        return "-"
    cells = mark_safe("<tr>" + "<td>{}</td>" * len(lines[0]) + "</tr>")
    return format_html("<table>{}</table>", format_html_join("", cells, lines))


def _is_id(text: str) -> bool:
    try:
        context_of(project_queue()).ids.check(text)
    except InvalidJobIdError:
        return False
    return True
