"""Books by shelf, their loans, and what was counted."""

import uuid

from cassandra.cqlengine import columns
from cassandra.cqlengine.usertype import UserType
from django_cassandra_engine.models import DjangoCassandraModel


class Author(UserType):
    name = columns.Text()
    born = columns.Integer()
    languages = columns.Set(columns.Text())


class Book(DjangoCassandraModel):
    shelf = columns.Text(primary_key=True)
    number = columns.Integer(primary_key=True, clustering_order="DESC")
    uid = columns.UUID(default=uuid.uuid4)
    title = columns.Text(required=True)
    price = columns.Decimal()
    added = columns.DateTime()
    tags = columns.Set(columns.Text())
    pages = columns.List(columns.Integer())
    notes = columns.Map(columns.Text(), columns.Text())
    author = columns.UserDefinedType(Author)
    library = columns.Text(static=True)

    class Meta:
        get_pk_field = "shelf"


class Reader(DjangoCassandraModel):
    reader_id = columns.UUID(primary_key=True, default=uuid.uuid4)
    name = columns.Text()
    active = columns.Boolean(default=True)


class Loans(DjangoCassandraModel):
    shelf = columns.Text(primary_key=True)
    lent = columns.Counter()
