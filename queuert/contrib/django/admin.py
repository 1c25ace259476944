"""A read-only view of the jobs, with what an operator may do about them: retry and cancel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.contrib import admin, messages
from django.core.paginator import Paginator
from django.http import HttpRequest
from django.utils.functional import cached_property
from django.utils.html import format_html, format_html_join

from queuert.contrib.django.conf import project_queue
from queuert.contrib.django.models import Job
from queuert.errors import QueuertError

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
