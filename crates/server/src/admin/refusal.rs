//! Why a request to the REST interface is not carried out, and its HTTP form.

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use engine::EngineError;
use serde_json::json;

/// The result of a REST request.
pub(super) type RestResult<T = ()> = Result<Json<T>, Refusal>;

/// Why an operation was not done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The request is invalid.
    Bad(String),
    /// The object does not exist.
    Missing(String),
    /// Too many such requests run already.
    Busy(String),
    /// The operation has not ended within the time that the caller gave it.
    TimedOut(String),
    /// The operation failed.
    Failed(String),
}

impl Refusal {
    pub(super) fn failed(error: impl std::fmt::Display) -> Refusal {
        Refusal::Failed(error.to_string())
    }

    /// Maps an error of the engine. An error that the caller can correct is not a failure of the
    /// node.
    pub(super) fn of_engine(error: EngineError) -> Refusal {
        match error {
            EngineError::SnapshotName(_) | EngineError::NoSuchTable(_) => Refusal::Bad(error.to_string()),
            other => Refusal::failed(other),
        }
    }

    /// The same. A failure of the node also names the place where it happened.
    pub(super) fn at(self, place: impl std::fmt::Display) -> Refusal {
        match self {
            Refusal::Failed(why) => Refusal::Failed(format!("{place}: {why}")),
            other => other,
        }
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let (code, message) = match self {
            Refusal::Bad(message) => (StatusCode::BAD_REQUEST, message),
            Refusal::Missing(message) => (StatusCode::NOT_FOUND, message),
            Refusal::Busy(message) => (StatusCode::TOO_MANY_REQUESTS, message),
            Refusal::TimedOut(message) => (StatusCode::REQUEST_TIMEOUT, message),
            Refusal::Failed(message) => (StatusCode::INTERNAL_SERVER_ERROR, message),
        };
        (code, Json(json!({ "message": message, "code": code.as_u16() }))).into_response()
    }
}
