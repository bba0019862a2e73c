//! The HTTP ports while the node starts: each request is answered with the status 503 and what the
//! node waits for.

use super::Port;
use super::caller::Callers;
use crate::config::Config;
use axum::Router;
use axum::http::StatusCode;
use axum::http::header::CONNECTION;
use axum::response::{IntoResponse, Response};
use cluster::topology::search_progress::SearchProgress;
use std::convert::Infallible;

/// Serves both ports until it is dropped. Then all of its connections are closed.
pub async fn serve(
    metrics: Option<&Port>,
    admin: Option<&Port>,
    config: &Config,
    progress: &SearchProgress,
) -> Infallible {
    let names: Vec<String> = config.http_allowed_hosts.0.iter().map(|name| name.0.clone()).collect();
    let ports = [
        (metrics, Callers::of_metrics(config.prometheus_address, &names)),
        (admin, Callers::of_administration(config.api_address, &names)),
    ];
    let serving = ports.into_iter().filter_map(|(port, callers)| {
        let progress = progress.clone();
        let router = Router::new().fallback(move || async move { answer(&progress) });
        port.map(|port| port.serve_until_dropped(router, callers))
    });
    futures_util::future::join_all(serving).await;
    // No port is configured.
    std::future::pending().await
}

fn answer(progress: &SearchProgress) -> Response {
    let code = StatusCode::SERVICE_UNAVAILABLE;
    let message = match progress.get() {
        Some(waits_for) => format!("the node is starting: {waits_for}"),
        None => "the node is starting: it opens its data and joins its cluster".to_owned(),
    };
    // The next request of the client must reach the node that is ready.
    let close = [(CONNECTION, "close")];
    (code, close, axum::Json(serde_json::json!({ "message": message, "code": code.as_u16() }))).into_response()
}
