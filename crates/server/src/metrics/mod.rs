//! Metrics for Prometheus, per shard, with ScyllaDB's names.
//!
//! [`sample`] collects the values of one shard. [`families`] is the table of names. [`text`] writes
//! the text format. A new metric is a field in the metrics of some layer, and a line in
//! [`families`].

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

/// The route `/metrics`.
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
