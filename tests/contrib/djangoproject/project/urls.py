"""The admin, and a view that is one transaction."""

from django.contrib import admin
from django.urls import path
from work.views import place, place_and_fail

urlpatterns = [path("admin/", admin.site.urls), path("place/", place), path("place-and-fail/", place_and_fail)]
