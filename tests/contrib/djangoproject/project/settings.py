"""A project that has everything on: admin, sessions, tasks, on the database that PROJECT_DATABASE names."""

import json
import os
from importlib.util import find_spec

import django

SECRET_KEY = "only for tests"
DEBUG = False
ALLOWED_HOSTS = ["*"]
USE_TZ = True
ROOT_URLCONF = "project.urls"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "queuert.contrib.django",
    "work",
]
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
DATABASES = {"default": json.loads(os.environ["PROJECT_DATABASE"])}
QUEUERT = json.loads(os.environ.get("PROJECT_QUEUERT", "{}"))
if django.VERSION >= (6, 0) or find_spec("django_tasks"):
    TASKS = {"default": {"BACKEND": "queuert.contrib.django.tasks.QueuertBackend", "QUEUES": ["default", "mail"]}}
    if django.VERSION < (6, 0):
        INSTALLED_APPS.append("django_tasks")
