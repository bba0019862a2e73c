//! Prepared statements in tests: their values, markers and rows.

use super::Session;
use cql::api::{BoundValues, Rows};
use cql::{Error, Prepared, QueryParams, ResultKind, StatementResult};
use model::CqlType;
use model::types::Value;

pub const INT: &CqlType = &CqlType::Int;
pub const TEXT: &CqlType = &CqlType::Text;
pub const BIGINT: &CqlType = &CqlType::Bigint;

pub fn int(value: i32) -> (&'static CqlType, Value) {
    (INT, Value::Int(value))
}

pub fn text(value: &str) -> (&'static CqlType, Value) {
    (TEXT, Value::Text(value.to_owned()))
}

pub fn bigint(value: i64) -> (&'static CqlType, Value) {
    (BIGINT, Value::Bigint(value))
}

pub fn params(values: BoundValues) -> QueryParams {
    QueryParams { values, ..QueryParams::default() }
}

pub async fn execute(session: &Session, prepared: &Prepared, values: BoundValues) -> Result<StatementResult, Error> {
    session.processor.execute(&session.client, &prepared.id, &params(values)).await
}

pub async fn prepare(session: &Session, text: &str) -> Prepared {
    let prepared = session.processor.prepare(&session.client, text, None).await;
    prepared.unwrap_or_else(|error| panic!("{text}: {error}"))
}

pub fn rows(answer: Result<StatementResult, Error>) -> Rows {
    match answer.map(|answer| answer.kind) {
        Ok(ResultKind::Rows(rows)) => rows,
        other => panic!("{other:?}"),
    }
}

pub fn markers(prepared: &Prepared) -> Vec<String> {
    prepared.markers.columns.iter().map(|column| format!("{} {}", column.name, column.ty)).collect()
}
