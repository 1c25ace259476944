"""What the jobs work on."""

from django.db import models


class Order(models.Model):
    state = models.TextField(default="new")
