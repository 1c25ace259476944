"""One page, and one thing to do on it."""

from django.urls import path
from orders.views import page, place

urlpatterns = [path("", page), path("orders", place)]
