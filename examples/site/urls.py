"""Addresses of the site."""

from django.urls import path

from newsletter import views

urlpatterns = [
    path("subscribe", views.subscribe),
    path("tasks/<str:task_id>", views.show_task),
]
