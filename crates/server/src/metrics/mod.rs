//! Metrics for Prometheus, with ScyllaDB's names, per shard.
//!
//! [`sample`] takes one shard's numbers, [`families`] is the table that names them, [`text`] writes them. A new number is a
//! field of some floor's snapshot and a line in [`families`].

pub mod families;
pub mod sample;
pub mod text;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use rt::Remote;
use sample::Sample;

/// The content type of Prometheus's text format.
const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// `/metrics`.
pub fn router(remote: Remote) -> Router {
    Router::new().route("/metrics", get(scrape)).with_state(remote)
}

async fn scrape(State(remote): State<Remote>) -> Response {
    match remote.call_all(|| async { Sample::take() }).await {
        Ok(samples) => {
            let body = text::write(families::FAMILIES, &samples);
            ([(header::CONTENT_TYPE, CONTENT_TYPE)], body).into_response()
        }
        Err(gone) => (StatusCode::SERVICE_UNAVAILABLE, gone.to_string()).into_response(),
    }
}
