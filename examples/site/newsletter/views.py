"""Views of the newsletter."""

from __future__ import annotations

from django.core.exceptions import ValidationError
from django.db import transaction
from django.http import HttpRequest, JsonResponse
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_GET, require_POST

from newsletter.models import Subscriber
from newsletter.tasks import send_welcome

try:
    from django.tasks.exceptions import TaskResultDoesNotExist
except ImportError:
    from django_tasks.exceptions import TaskResultDoesNotExist


@csrf_exempt  # for curl; a form of the site would send the token
@require_POST
@transaction.atomic
def subscribe(request: HttpRequest) -> JsonResponse:
    subscriber = Subscriber(email=request.POST.get("email", ""))
    try:
        subscriber.full_clean()
    except ValidationError as error:
        return JsonResponse({"errors": error.messages}, status=400)
    subscriber.save()
    result = send_welcome.enqueue(subscriber.pk)  # when this transaction commits
    return JsonResponse({"task": result.id}, status=202)


@require_GET
def show_task(request: HttpRequest, task_id: str) -> JsonResponse:
    try:
        result = send_welcome.get_result(task_id)
    except TaskResultDoesNotExist:
        return JsonResponse({"error": "unknown task"}, status=404)
    value = result.return_value if result.is_finished and not result.errors else None
    return JsonResponse({"status": result.status, "result": value})
