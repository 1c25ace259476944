"""A read-only view of the jobs, with what an operator may do about them: retry and cancel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.contrib import admin, messages
from django.contrib.admin.views.main import SEARCH_VAR
from django.core.paginator import Paginator
from django.http import HttpRequest
from django.utils.functional import cached_property
from django.utils.html import format_html, format_html_join

from queuert.app import context_of
from queuert.contrib.django.conf import project_queue
from queuert.contrib.django.models import Job
from queuert.errors import InvalidJobIdError, QueuertError

MOST_COUNTED = 10_000


class CappedPaginator(Paginator):
    """Counting all of a large table would take longer than showing a page of it."""

    @cached_property
    def count(self) -> int:
        rows: Any = self.object_list
        return int(rows.order_by()[:MOST_COUNTED].count())


@admin.register(Job)
class JobAdmin(admin.ModelAdmin):
    list_display = ("type_name", "status", "attempt", "scheduled_at", "leased_by", "error_code", "id")
    list_filter = ("status",)
    search_fields = ("=id", "=chain_id", "=type_name", "=error_code")
    search_help_text = "An id, a type or an error code, written out."
    ordering = ("-created_at", "-id")
    actions = ("retry", "cancel")
    paginator = CappedPaginator
    show_full_result_count = False
    list_per_page = 50

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> list[str]:
        return [*(field.name for field in Job._meta.fields), "timeline"]

    def get_fields(self, request: HttpRequest, obj: Any = None) -> list[str]:
        return self.get_readonly_fields(request, obj)

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Any:
        """A malformed id is one that is not there; PostgreSQL would refuse to compare it."""
        return super().get_object(request, object_id, from_field) if _is_id(object_id) else None

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

    @admin.display(description="timeline")
    def timeline(self, job: Job) -> Any:
        entries = project_queue().timeline(job.id)
        rows = format_html_join(
            "", "<tr><td>{}</td><td>{}</td><td>{}</td></tr>", ((e.at.isoformat(), e.event, e.actor or "") for e in entries)
        )
        return format_html("<table>{}</table>", rows)

    @admin.action(description="Retry the chains of the selected jobs", permissions=["operate"])
    def retry(self, request: HttpRequest, queryset: Any) -> None:
        self._act(request, queryset, project_queue().retry_chain, "retried")

    @admin.action(description="Cancel the chains of the selected jobs", permissions=["operate"])
    def cancel(self, request: HttpRequest, queryset: Any) -> None:
        self._act(request, queryset, project_queue().cancel_chain, "cancelled")

    def _act(self, request: HttpRequest, queryset: Any, act: Callable[[str], Any], done: str) -> None:
        """Each chain by itself: one that cannot be acted on does not keep the others from it."""
        acted = 0
        for chain in dict.fromkeys(job.chain_id for job in queryset):
            try:
                act(chain)
            except QueuertError as error:
                self.message_user(request, str(error), messages.WARNING)
            else:
                acted += 1
        self.message_user(request, f"{acted} chains {done}.", messages.SUCCESS if acted else messages.INFO)


def _is_id(text: str) -> bool:
    try:
        context_of(project_queue()).ids.check(text)
    except InvalidJobIdError:
        return False
    return True
