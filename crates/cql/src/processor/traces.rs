//! Records traces and slow requests: times a request, and stores its trace after the answer.

use super::slow_log::{self, SlowLog, SlowLogSettings, SlowRequest};
use super::trace_store;
use crate::api::{ClientState, QueryParams};
use crate::plan::Planned;
use cluster::MetadataService;
use coordinator::Coordinator;
use replica::Trace;
use std::rc::Rc;

/// An answered request, with the data for its trace and its slow log record.
pub(super) struct Finished<'a> {
    pub client: &'a ClientState,
    pub params: &'a QueryParams,
    pub command: &'static str,
    pub request: &'static str,
    /// The statement. The statements of a batch are joined.
    pub text: &'a str,
    /// The executed plans. Empty if planning failed.
    pub planned: &'a [Rc<Planned>],
}

/// Decides which requests of a shard are traced or slow, and has their records written.
pub(super) struct Tracing {
    coordinator: Rc<Coordinator>,
    slow_log: SlowLog,
}

impl Tracing {
    /// Nothing is logged as slow yet. `coordinator` writes the records.
    pub fn new(coordinator: Rc<Coordinator>) -> Tracing {
        Tracing { coordinator, slow_log: SlowLog::default() }
    }

    /// The settings of the slow query log.
    pub fn slow_log(&self) -> SlowLogSettings {
        self.slow_log.settings()
    }

    /// Sets the slow query log for all later requests.
    pub fn set_slow_log(&self, settings: SlowLogSettings) {
        self.slow_log.set(settings);
    }

    /// The trace that measures the time of a request. `None` unless the request is traced or the
    /// slow query log is enabled.
    #[inline]
    pub fn trace_of(&self, params: &QueryParams) -> Option<Rc<Trace>> {
        match params.trace {
            Some(id) => Some(Rc::new(Trace::new(id))),
            None if self.slow_log.settings().enabled => Some(Rc::new(Trace::new(rt::random::time_uuid()))),
            None => None,
        }
    }

    /// The trace that records the steps of a request. `None` if only its time is needed.
    pub fn steps_of(&self, trace: &Rc<Trace>, params: &QueryParams) -> Option<Rc<Trace>> {
        let wanted = params.trace.is_some() || !self.slow_log.settings().fast;
        wanted.then(|| trace.clone())
    }

    /// Stores the trace of an answered request if the client requested it. A slow request is also
    /// recorded in the slow query log, with its trace.
    pub fn finished(&self, trace: Rc<Trace>, finished: Finished<'_>) {
        let Finished { client, params, command, request, text, planned } = finished;
        let duration = trace.elapsed_micros();
        let admitted = self.slow_log.admit(duration);
        if params.trace.is_none() && admitted.is_none() {
            return;
        }
        let mut parameters = vec![
            ("consistency_level".to_owned(), params.consistency.name().to_owned()),
            ("query".to_owned(), slow_log::shown_text(text)),
        ];
        if let Some(level) = params.serial_consistency {
            parameters.push(("serial_consistency_level".to_owned(), level.name().to_owned()));
        }
        if let Some(size) = params.page_size {
            parameters.push(("page_size".to_owned(), size.to_string()));
        }
        let Some(admitted) = admitted else {
            return self.save(Some(trace), client, parameters, command, request);
        };
        let service = self.coordinator.metadata_service();
        let session = session_of(service, &trace, client, parameters, command, request);
        let mut tables: Vec<String> = planned.iter().flat_map(|planned| planned.plan.table_names()).collect();
        tables.sort();
        tables.dedup();
        let slow = SlowRequest {
            session: trace.id,
            started_at: session.started_at,
            duration,
            command: slow_log::shown_text(text),
            parameters: session.parameters.clone(),
            client: session.client,
            node: session.coordinator,
            tables,
            username: client.role.borrow().clone(),
        };
        let (coordinator, ttl) = (self.coordinator.clone(), self.slow_log.settings().ttl_seconds);
        let trace_ttl = params.trace.is_none().then_some(ttl);
        rt::task::spawn(async move {
            slow_log::save(&coordinator, slow, ttl).await;
            drop(admitted);
            trace_store::save(&coordinator, trace, session, trace_ttl).await;
        })
        .detach();
    }

    /// Stores the trace of an answered request, if too many traces do not wait already.
    pub fn save(
        &self,
        trace: Option<Rc<Trace>>,
        client: &ClientState,
        parameters: Vec<(String, String)>,
        command: &'static str,
        request: &str,
    ) {
        let Some(trace) = trace else { return };
        let Some(admitted) = self.slow_log.admit_trace() else { return };
        let service = self.coordinator.metadata_service();
        let session = session_of(service, &trace, client, parameters, command, request);
        let coordinator = self.coordinator.clone();
        rt::task::spawn(async move {
            trace_store::save(&coordinator, trace, session, None).await;
            drop(admitted);
        })
        .detach();
    }
}

/// The session of a trace that ends now.
fn session_of(
    service: &MetadataService,
    trace: &Trace,
    client: &ClientState,
    parameters: Vec<(String, String)>,
    command: &'static str,
    request: &str,
) -> trace_store::Session {
    let elapsed = i64::from(trace.elapsed_micros()) / 1000;
    trace_store::Session {
        client: client.address.map(|address| address.ip()),
        coordinator: service.info().broadcast_address,
        command,
        request: request.to_owned(),
        parameters,
        started_at: rt::time::wall_micros() / 1000 - elapsed,
    }
}
