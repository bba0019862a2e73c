"""A Django site on django-cassandra-engine: models, queries, a page with a session, saved while a
node is killed."""

import datetime
import decimal
import pathlib
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.append(str(HERE.parent))

from middle import DATACENTER, HOSTS, Kill, check, end, keyspace, same  # noqa: E402

import django  # noqa: E402
from cassandra import ConsistencyLevel  # noqa: E402
from django.conf import settings  # noqa: E402
from django.http import JsonResponse  # noqa: E402
from django.urls import path  # noqa: E402

BOOKS = 120
ADDED = datetime.datetime(2024, 5, 6, 7, 8, 9, 123000)


def visit(request):
    request.session["visits"] = request.session.get("visits", 0) + 1
    return JsonResponse({"visits": request.session["visits"]})


urlpatterns = [path("visit/", visit)]

settings.configure(
    SECRET_KEY="a test",
    ALLOWED_HOSTS=["testserver"],
    ROOT_URLCONF=__name__,
    USE_TZ=False,
    INSTALLED_APPS=["django_cassandra_engine", "django_cassandra_engine.sessions", "library"],
    SESSION_ENGINE="django_cassandra_engine.sessions.backends.db",
    MIDDLEWARE=["django.contrib.sessions.middleware.SessionMiddleware"],
    DATABASES={"default": {
        "ENGINE": "django_cassandra_engine", "NAME": "library", "TEST_NAME": "test_library",
        "HOST": ",".join(HOSTS),
        "OPTIONS": {"replication": {"strategy_class": "NetworkTopologyStrategy", DATACENTER: 3},
                    "connection": {"consistency": ConsistencyLevel.QUORUM, "retry_connect": True}},
    }},
)
keyspace("library")
django.setup()

from django.core.management import call_command  # noqa: E402
from django.test import Client  # noqa: E402
from library.models import Author, Book, Loans, Reader  # noqa: E402


def book(shelf, n):
    return dict(shelf=shelf, number=n, title=f"Title {n} ß", price=decimal.Decimal(n) / 100,
        added=ADDED + datetime.timedelta(hours=n), tags={f"t{n % 4}", "all"},
                pages=[n, n + 1], notes={"n": str(n)},
                author=Author(name=f"Author {n % 7}", born=1900 + n, languages={"it", "en"}))


def tried(what, attempts=60):
    """Repeats what failed, as a site's users do; the models have no condition, so a repeated save
    does no harm."""
    for attempt in range(attempts):
        try:
            return what()
        except Exception as error:
            print(f"attempt {attempt + 1}: {type(error).__name__}: {error}", file=sys.stderr)
            if attempt == attempts - 1:
                raise
            time.sleep(0.2)


def main():
    with check("sync"):
        call_command("sync_cassandra", verbosity=0)
        call_command("sync_cassandra", verbosity=0)
    with check("objects"):
        for n in range(BOOKS):
            Book.objects.create(library="city", **book("calm", n))
        one = Book.objects.get(shelf="calm", number=7)
        same((one.title, one.price, one.added, set(one.tags), list(one.pages), dict(one.notes),
            one.library),
             ("Title 7 ß", decimal.Decimal("0.07"), ADDED + datetime.timedelta(hours=7),
                 {"t3", "all"}, [7, 8], {"n": "7"}, "city"), "a book")
        same(
            (one.author.name, one.author.born, set(one.author.languages)),
            ("Author 0", 1907, {"it", "en"}),
            "its author",
        )
        reader = Reader.objects.create(name="Ada")
        same(Reader.objects.get(reader_id=reader.reader_id).active, True, "a default")
        try:
            Book.objects.get(shelf="calm", number=BOOKS)
        except Book.DoesNotExist:
            pass
        else:
            raise AssertionError("a book that was never made is there")
    with check("queries"):
        same(Book.objects.filter(shelf="calm").count(), BOOKS, "count")
        same(
            [
                one.number
                for one in Book.objects.filter(shelf="calm", number__gte=10, number__lt=15)
            ],
            [14, 13, 12, 11, 10],
            "a range",
        )
        same(
            [one.number for one in Book.objects.filter(shelf="calm").order_by("number").limit(3)],
            [0, 1, 2],
            "order_by",
        )
        same(
            [one.number for one in Book.objects.filter(shelf="calm", number__in=[5, 9])],
            [9, 5],
            "in",
        )
        same(
            sorted(
                Book.objects.filter(shelf="calm", tags__contains="t1")
                .allow_filtering()
                .values_list("number", flat=True)
            ),
            [n for n in range(BOOKS) if n % 4 == 1],
            "contains",
        )
        same(len(Book.objects.filter(shelf="calm").only(["title"]).limit(None)), BOOKS, "only")
        same(Book.objects.filter(shelf="calm").first().number, BOOKS - 1, "first")
    with check("sessions"):
        client = Client()
        same([client.get("/visit/").json()["visits"] for _ in range(5)], [1, 2, 3, 4, 5], "visits")
        same(Client().get("/visit/").json()["visits"], 1, "another visitor")
    with check("kill_middle"):
        kill, n = None, 0
        until = time.monotonic() + 120
        while kill is None or not kill.back or n < 200:
            assert time.monotonic() < until, "the node did not come back"
            tried(lambda: Book.objects.create(**book("storm", n)))
            if n % 10 == 0:
                same(
                    tried(lambda: Book.objects.get(shelf="storm", number=n)).author.born,
                    1900 + n,
                    "read after write",
                )
            if n % 25 == 0:
                visits = tried(lambda: client.get("/visit/").json()["visits"])
                assert (
                    visits >= 6 + n // 25
                ), f"{visits} visits after {n // 25} more: the session was lost"
            n += 1
            if n == 100:
                kill = Kill()
        found = {one.number: one for one in Book.objects.filter(shelf="storm").limit(None)}
        same(sorted(found), list(range(n)), "the books that were saved")
        for number, one in found.items():
            same((one.title, one.author.born), (f"Title {number} ß", 1900 + number), "a book")
    with check("update_delete"):
        Book.objects.filter(shelf="calm", number=3).update(
            title="new", tags__add={"more"}, notes__update={"k": "v"}, pages__append=[99]
        )
        one = Book.objects.get(shelf="calm", number=3)
        same((one.title, set(one.tags), dict(one.notes), list(one.pages)),
            ("new", {"t3", "all", "more"}, {"n": "3", "k": "v"}, [3, 4, 99]), "updated")
        one.title = "newer"
        one.tags.discard("more")
        one.save()
        one = Book.objects.get(shelf="calm", number=3)
        same((one.title, set(one.tags)), ("newer", {"t3", "all"}), "saved")
        one.delete()
        same(Book.objects.filter(shelf="calm").count(), BOOKS - 1, "deleted")
        Book.objects.filter(shelf="calm", number__gte=100).delete()
        same(Book.objects.filter(shelf="calm").count(), 99, "a range deleted")
        for _ in range(3):
            Loans.objects(shelf="calm").update(lent=2)
        same(Loans.objects.get(shelf="calm").lent, 6, "a counter")
    end()


main()
