//! The entry of the query processor. Each shard has one, which answers the statements of the
//! shard's connections.
//!
//! Statements are parsed and planned once, and cached. Prepared statements are cached under their
//! ids; other statements have a smaller cache. A plan whose table has changed is made again before
//! it is executed.
//!
//! The answer is the error UNPREPARED if values bound for the old plan could mean something else
//! now, or if the client must learn about the change. Drivers then prepare the statement again.
//! PREPARE reaches every shard before it is answered, so any connection can execute the statement.
//!
//! Reading order: this file (requests). `plans` has the caches and finds the plan of a statement.
//! `dispatch` executes a plan. `traces` decides which requests are traced or slow. `slow_log` and
//! `trace_store` write their records.

mod dispatch;
mod plans;
mod slow_log;
mod trace_store;
mod traces;

use crate::api::{Batch, BatchStatement, BoundValues, ClientState, Prepared, QueryParams, StatementResult};
use crate::authorize::{Permission, Resource, authorize};
use crate::batch::{self, BatchAttributes, Part};
use crate::error::Error;
use crate::fragments::{FragmentShards, LocalSourcesService};
use crate::plan::{Plan, PlanContext, Planned};
use crate::prepared::{CacheMetrics, StatementId};
use crate::request::{Config, Request};
use crate::statistics::{StatementMetrics, Statistics};
use crate::system::{self, SystemShards, SystemTables};
use crate::term::Env;
use cluster::Metadata;
use coordinator::Coordinator;
use plans::{Plans, Use, is_long};
use replica::Trace;
use rt::shard::PerShard;
use rt::sync::Semaphore;
pub use slow_log::SlowLogSettings;
use std::cell::RefCell;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use traces::{Finished, Tracing};
use uuid::Uuid;

/// The statements of a batch that are planned between two yields.
const STATEMENTS_PER_LOOK: usize = 16;

/// The services that the processors use on every shard.
#[derive(Clone, Copy, Debug, Default)]
pub struct ProcessorShards {
    /// The processors.
    pub processor: PerShard<Processor>,
    /// Their coordinators.
    pub coordinator: PerShard<Coordinator>,
    /// What system tables show.
    pub system: SystemShards,
    /// What MUTATION_FRAGMENTS shows.
    pub fragments: PerShard<LocalSourcesService>,
}

/// Answers statements on one shard.
pub struct Processor {
    coordinator: Rc<Coordinator>,
    shards: ProcessorShards,
    config: RefCell<Rc<Config>>,
    plans: Plans,
    statistics: Statistics,
    tracing: Tracing,
    /// See [`Request::turn`].
    expansion: Semaphore,
}

impl Processor {
    /// The processor of this shard, with default limits.
    pub fn new(coordinator: Rc<Coordinator>, shards: ProcessorShards) -> Self {
        Processor::with_config(coordinator, Config::default(), shards)
    }

    /// The processor of this shard.
    pub fn with_config(coordinator: Rc<Coordinator>, mut config: Config, shards: ProcessorShards) -> Self {
        let statistics = Statistics::default();
        config.guardrails.violations = statistics.violations.clone();
        let cluster = coordinator.metadata_service().shards();
        let context = PlanContext {
            system: SystemTables::new(cluster, shards.system),
            fragments: FragmentShards { metadata: cluster.metadata, sources: shards.fragments },
        };
        let plans = Plans::new(context, config.prepared_statements_cache_size);
        let (config, expansion) = (RefCell::new(Rc::new(config)), Semaphore::new(1));
        let tracing = Tracing::new(coordinator.clone());
        Processor { coordinator, shards, config, plans, statistics, tracing, expansion }
    }

    /// The current limits.
    pub fn config(&self) -> Rc<Config> {
        self.config.borrow().clone()
    }

    /// Sets the limits for all later requests. The size of the prepared statement cache does not
    /// change.
    pub fn set_config(&self, mut config: Config) {
        config.guardrails.violations = self.statistics.violations.clone();
        *self.config.borrow_mut() = Rc::new(config);
    }

    /// The settings of this shard's slow query log.
    pub fn slow_log(&self) -> SlowLogSettings {
        self.tracing.slow_log()
    }

    /// Sets the slow query log for all later requests.
    pub fn set_slow_log(&self, settings: SlowLogSettings) {
        self.tracing.set_slow_log(settings);
    }

    /// The metrics of this shard's prepared statement cache.
    pub fn prepared_statements(&self) -> CacheMetrics {
        self.plans.metrics()
    }

    /// The metrics of statements executed on this shard.
    pub fn statistics(&self) -> StatementMetrics {
        self.statistics.metrics()
    }

    /// Executes a statement given as text (QUERY).
    #[inline]
    pub async fn query(
        &self,
        client: &Rc<ClientState>,
        text: &str,
        params: &QueryParams,
    ) -> Result<StatementResult, Error> {
        let metadata = self.coordinator.metadata();
        let trace = self.tracing.trace_of(params);
        let steps = trace.as_ref().and_then(|trace| self.tracing.steps_of(trace, params));
        if let Some(steps) = &steps {
            steps.event("Parsing a statement");
        }
        let planned = self.plan_of_text(&metadata, client, text, params).await;
        let answer = match &planned {
            Ok(planned) => pin!(self.run(planned, client, params, metadata, steps)).await,
            Err(error) => Err(error.clone()),
        };
        if let Some(trace) = trace {
            let planned = planned.as_ref().map_or(&[][..], std::slice::from_ref);
            let (command, request) = ("QUERY", "Execute CQL3 query");
            self.tracing.finished(trace, Finished { client, params, command, request, text, planned });
        }
        answer
    }

    /// Executes a prepared statement (EXECUTE).
    #[inline]
    pub async fn execute(
        &self,
        client: &Rc<ClientState>,
        id: &StatementId,
        params: &QueryParams,
    ) -> Result<StatementResult, Error> {
        let metadata = self.coordinator.metadata();
        let (kept, planned) = self.plans.prepared(client, id, Use::Alone(params.skip_metadata), &metadata)?;
        let trace = self.tracing.trace_of(params);
        let steps = trace.as_ref().and_then(|trace| self.tracing.steps_of(trace, params));
        // Pinned, so that this large future is not moved.
        let answer = pin!(self.run(&planned, client, params, metadata, steps)).await;
        let Some(trace) = trace else { return answer };
        let (text, planned) = (&*kept.text, std::slice::from_ref(&planned));
        let (command, request) = ("EXECUTE", "Execute CQL3 prepared query");
        self.tracing.finished(trace, Finished { client, params, command, request, text, planned });
        answer
    }

    /// Whether the prepared statement with this id writes rows, so that its answer is small. False
    /// if this shard does not know it.
    pub fn is_write(&self, id: &StatementId) -> bool {
        self.plans.is_write(id)
    }

    /// Prepares a statement on every shard. With an id, the request is traced under this id.
    pub async fn prepare(&self, client: &Rc<ClientState>, text: &str, trace: Option<Uuid>) -> Result<Prepared, Error> {
        self.statistics.prepare();
        let trace = trace.map(|id| Rc::new(Trace::new(id)));
        let prepared = self.prepare_everywhere(client, text, trace.as_deref()).await;
        if let Ok(prepared) = &prepared {
            self.plans.inform_of_changes(client, &prepared.id);
        }
        let parameters = vec![("query".to_owned(), slow_log::shown_text(text))];
        self.tracing.save(trace, client, parameters, "PREPARE", "Preparing CQL3 query");
        prepared
    }

    async fn prepare_everywhere(
        &self,
        client: &Rc<ClientState>,
        text: &str,
        trace: Option<&Trace>,
    ) -> Result<Prepared, Error> {
        let note = |what: &str| {
            if let Some(trace) = trace {
                trace.event(what);
            }
        };
        let keyspace = client.keyspace.borrow().clone();
        let (config, params) = (self.config(), QueryParams::default());
        let dialect = config.dialect;
        let request = self.request(&config, self.coordinator.metadata(), client, &params, None);
        note("Parsing a statement");
        let (id, planned) = self.plans.prepare(&request, keyspace.as_deref(), text, dialect).await?;
        request.release_metadata();
        note("Planned on this shard, sending the statement to the other shards");
        let result = planned.result.id();
        let shared: Arc<(Option<String>, String)> = Arc::new((keyspace, text.to_owned()));
        let (here, processors) = (rt::shard::this(), self.shards.processor);
        rt::shard::call_all(move || {
            let shared = shared.clone();
            async move {
                if rt::shard::this() != here
                    && let Some(processor) = processors.try_get()
                {
                    // The other shards plan the statement when they first execute it.
                    let (keyspace, text) = &*shared;
                    processor.plans.insert_text(id, keyspace.as_deref(), text, dialect, result);
                }
            }
        })
        .await;
        note("All shards have the statement");
        Ok(Prepared {
            id,
            markers: planned.variables.clone(),
            partition_key_markers: planned.partition_key_markers.to_vec(),
            result: planned.result.clone(),
            // Conditional statements are refused earlier.
            conditional: false,
            warnings: Vec::new(),
        })
    }

    /// Executes a batch (BATCH).
    #[inline]
    pub async fn batch(&self, client: &Rc<ClientState>, batch: &Batch) -> Result<StatementResult, Error> {
        let metadata = self.coordinator.metadata();
        let mut planned: Vec<(Rc<Planned>, &BoundValues)> = Vec::with_capacity(batch.statements.len());
        for (i, statement) in batch.statements.iter().enumerate() {
            if i % STATEMENTS_PER_LOOK == STATEMENTS_PER_LOOK - 1 {
                rt::task::maybe_yield().await;
            }
            planned.push(match statement {
                BatchStatement::Query(text, values) => {
                    (self.plan_of_text(&metadata, client, text, &batch.params).await?, values)
                }
                BatchStatement::Prepared(id, values) => {
                    (self.plans.prepared(client, id, Use::InBatch, &metadata)?.1, values)
                }
            });
        }
        let config = self.config();
        let mut bound = Vec::with_capacity(planned.len());
        for (planned, values) in &planned {
            let mut values = planned.bind(values, config.referenced_bytes())?;
            if planned.has_large(&values) {
                let request = self.request(&config, metadata.clone(), client, &batch.params, None);
                values = Box::pin(planned.check_large(values, &request)).await?;
            }
            bound.push(values);
        }
        let role = client.role.borrow().clone();
        let mut parts = Vec::with_capacity(planned.len());
        for ((planned, _), values) in planned.iter().zip(&bound) {
            let modify = match &planned.plan {
                Plan::Modify(modify) => modify,
                Plan::Configure(modify) | Plan::Unwritable(modify) => {
                    return Err(system::not_writable(&modify.schema, batch.params.consistency));
                }
                _ => {
                    return Err(Error::invalid(
                        "Invalid statement in batch: only UPDATE, INSERT and DELETE statements are allowed.",
                    ));
                }
            };
            let table = Resource::Table { keyspace: &modify.schema.keyspace, table: &modify.schema.name };
            authorize(role.as_deref(), Permission::Modify, table)?;
            parts.push(Part { modify, env: Env { values, variables: &planned.variables.columns } });
        }
        let trace = self.tracing.trace_of(&batch.params);
        let steps = trace.as_ref().and_then(|trace| self.tracing.steps_of(trace, &batch.params));
        self.statistics.batch(batch.kind, &batch.params, parts.iter().map(|part| part.modify.verb));
        let request = self.request(&config, metadata, client, &batch.params, steps);
        let whole = BatchAttributes { kind: batch.kind, timestamp: None, timeout: None };
        let answer = batch::execute(&parts, &whole, &request).await;
        if let Some(trace) = trace {
            let text = self.plans.text_of(batch);
            let planned: Vec<Rc<Planned>> = planned.iter().map(|(planned, _)| planned.clone()).collect();
            let (params, text, planned) = (&batch.params, &*text, &planned[..]);
            let (command, request) = ("BATCH", "Execute batch of CQL3 queries");
            self.tracing.finished(trace, Finished { client, params, command, request, text, planned });
        }
        answer
    }

    /// The plan of a statement given as text.
    async fn plan_of_text(
        &self,
        metadata: &Rc<Metadata>,
        client: &ClientState,
        text: &str,
        params: &QueryParams,
    ) -> Result<Rc<Planned>, Error> {
        if !is_long(text) {
            let dialect = self.config.borrow().dialect;
            return self.plans.of_query(metadata, client, text, dialect);
        }
        let (config, keyspace) = (self.config(), client.keyspace.borrow().clone());
        let request = self.request(&config, metadata.clone(), client, params, None);
        let planned = Box::pin(self.plans.of_long(&request, keyspace.as_deref(), text, config.dialect));
        planned.await.map(Rc::new)
    }

    fn request<'a>(
        &'a self,
        config: &'a Config,
        metadata: Rc<Metadata>,
        client: &'a ClientState,
        params: &'a QueryParams,
        trace: Option<Rc<Trace>>,
    ) -> Request<'a> {
        let held = RefCell::new(Some(metadata));
        Request { coordinator: &self.coordinator, held, config, client, params, trace, expansion: &self.expansion }
    }
}
