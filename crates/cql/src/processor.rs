//! The language's door: one processor per shard answers the statements of that shard's connections.
//!
//! Text is parsed and planned once and kept: prepared statements under their ids, others in a smaller cache. A plan whose table
//! has changed is made anew without the client noticing. PREPARE reaches every shard before it is answered, so that the
//! statement can be executed through any connection.

use crate::api::{Answer, AnswerKind, Batch, BatchStatement, BoundValues, ClientState, Prepared, QueryParams};
use crate::attributes::Attributes;
use crate::authorize::{Permission, Resource, authorize};
use crate::batch::{self, Part, Whole};
use crate::error::Error;
use crate::plan::{BatchPlan, Plan, Planned, bind, plan};
use crate::prepared::{Cache, Kept, StatementId, id_of};
use crate::request::{Config, Request};
use crate::schema::{is_schema_statement, names};
use crate::syntax::{Statement, parse};
use crate::term::Env;
use crate::trace_store;
use crate::{describe, schema};
use cluster::{Coordinator, Metadata, MetadataService};
use replica::Trace;
use std::cell::RefCell;
use std::rc::Rc;

/// Bytes that the plans of unprepared statements may take.
const QUERY_CACHE_SIZE: usize = 4 << 20;
/// Longer texts are not kept unless they are prepared.
const MAX_KEPT_TEXT: usize = 16 << 10;

/// Answers statements on one shard.
pub struct Processor {
    coordinator: Rc<Coordinator>,
    config: Config,
    prepared: RefCell<Cache>,
    queries: RefCell<Cache>,
}

impl Processor {
    /// The processor of this shard, with default limits.
    pub fn new(coordinator: Rc<Coordinator>) -> Self {
        Processor::with_config(coordinator, Config::default())
    }

    /// The processor of this shard.
    pub fn with_config(coordinator: Rc<Coordinator>, config: Config) -> Self {
        let prepared = RefCell::new(Cache::new(config.prepared_statements_cache_size));
        Processor { coordinator, config, prepared, queries: RefCell::new(Cache::new(QUERY_CACHE_SIZE)) }
    }

    /// How many statements are prepared on this shard, and how many had to go for want of room.
    pub fn prepared_statements(&self) -> (usize, u64) {
        let prepared = self.prepared.borrow();
        (prepared.len(), prepared.evicted())
    }

    /// Executes a statement given as text.
    pub async fn query(&self, client: &Rc<ClientState>, text: &str, params: &QueryParams) -> Result<Answer, Error> {
        let metadata = self.coordinator.metadata();
        let trace = trace_of(params);
        if let Some(trace) = &trace {
            trace.event("Parsing a statement");
        }
        let planned = self.plan_of_query(&metadata, client, text)?;
        let answer = self.run(&planned, client, params, metadata, trace.clone()).await;
        self.finish_trace(trace, client, params, "QUERY", "Execute CQL3 query", text);
        answer
    }

    /// Prepares a statement on every shard.
    pub async fn prepare(&self, client: &Rc<ClientState>, text: &str) -> Result<Prepared, Error> {
        let keyspace = client.keyspace.borrow().clone();
        let id = id_of(keyspace.as_deref(), text);
        let planned = self.prepare_here(id, keyspace.as_deref(), text)?;
        let shared: std::sync::Arc<(Option<String>, String)> = std::sync::Arc::new((keyspace, text.to_owned()));
        let here = rt::shard::this();
        rt::shard::call_all(move || {
            let shared = shared.clone();
            async move {
                if rt::shard::this() != here
                    && let Some(processor) = rt::shard::try_service::<Processor>()
                {
                    let (keyspace, text) = &*shared;
                    // A shard that cannot plan it yet keeps the text, and plans when it is executed.
                    if processor.prepare_here(id, keyspace.as_deref(), text).is_err() {
                        processor.prepared.borrow_mut().insert(id, keyspace.as_deref(), text, None);
                    }
                }
            }
        })
        .await;
        Ok(Prepared {
            id,
            markers: planned.variables.clone(),
            partition_key_markers: planned.partition_key_markers.clone(),
            result: planned.result.clone(),
            warnings: Vec::new(),
        })
    }

    /// Executes a prepared statement.
    pub async fn execute(
        &self,
        client: &Rc<ClientState>,
        id: &StatementId,
        params: &QueryParams,
    ) -> Result<Answer, Error> {
        let metadata = self.coordinator.metadata();
        let kept = self.prepared.borrow().get(id).ok_or(Error::Unprepared(*id))?;
        let planned = current(&kept, &metadata)?;
        if params.trace.is_none() {
            return self.run(&planned, client, params, metadata, None).await;
        }
        let trace = trace_of(params);
        let answer = self.run(&planned, client, params, metadata, trace.clone()).await;
        self.finish_trace(trace, client, params, "EXECUTE", "Execute CQL3 prepared query", &kept.text);
        answer
    }

    /// Executes a batch.
    pub async fn batch(&self, client: &Rc<ClientState>, batch: &Batch) -> Result<Answer, Error> {
        let metadata = self.coordinator.metadata();
        let mut planned: Vec<(Rc<Planned>, &BoundValues)> = Vec::with_capacity(batch.statements.len());
        for statement in &batch.statements {
            planned.push(match statement {
                BatchStatement::Query(text, values) => (self.plan_of_query(&metadata, client, text)?, values),
                BatchStatement::Prepared(id, values) => {
                    let kept = self.prepared.borrow().get(id).ok_or(Error::Unprepared(*id))?;
                    (current(&kept, &metadata)?, values)
                }
            });
        }
        let mut bound = Vec::with_capacity(planned.len());
        for (planned, values) in &planned {
            bound.push(bind(values, &planned.variables.columns)?);
        }
        let role = client.role.borrow().clone();
        let mut parts = Vec::with_capacity(planned.len());
        for ((planned, _), values) in planned.iter().zip(&bound) {
            let Plan::Modify(modify) = &planned.plan else {
                return Err(Error::invalid(
                    "Invalid statement in batch: only UPDATE, INSERT and DELETE statements are allowed.",
                ));
            };
            let table = Resource::Table { keyspace: &modify.schema.keyspace, table: &modify.schema.name };
            authorize(role.as_deref(), Permission::Modify, table)?;
            parts.push(Part { modify, env: Env { values, variables: &planned.variables.columns } });
        }
        let trace = trace_of(&batch.params);
        let request = self.request(&metadata, client, &batch.params, trace.clone());
        let whole = Whole { kind: batch.kind, timestamp: None, timeout: None };
        let answer = batch::execute(&parts, &whole, &request).await;
        self.finish_trace(trace, client, &batch.params, "BATCH", "Execute batch of CQL3 queries", "");
        answer
    }

    fn prepare_here(&self, id: StatementId, keyspace: Option<&str>, text: &str) -> Result<Rc<Planned>, Error> {
        let metadata = self.coordinator.metadata();
        let kept = self.prepared.borrow().get(&id);
        if let Some(kept) = kept {
            return current(&kept, &metadata);
        }
        let planned = Rc::new(plan_text(&metadata, keyspace, text)?);
        self.prepared.borrow_mut().insert(id, keyspace, text, Some(planned.clone()));
        Ok(planned)
    }

    fn plan_of_query(&self, metadata: &Metadata, client: &ClientState, text: &str) -> Result<Rc<Planned>, Error> {
        let keyspace = client.keyspace.borrow();
        let keyspace = keyspace.as_deref();
        if text.len() > MAX_KEPT_TEXT {
            return plan_text(metadata, keyspace, text).map(Rc::new);
        }
        let id = id_of(keyspace, text);
        let kept = self.queries.borrow().get(&id);
        if let Some(kept) = kept {
            return current(&kept, metadata);
        }
        let planned = Rc::new(plan_text(metadata, keyspace, text)?);
        if is_data(&planned.plan) {
            self.queries.borrow_mut().insert(id, keyspace, text, Some(planned.clone()));
        }
        Ok(planned)
    }

    fn request<'a>(
        &'a self,
        metadata: &'a Rc<Metadata>,
        client: &'a ClientState,
        params: &'a QueryParams,
        trace: Option<Rc<Trace>>,
    ) -> Request<'a> {
        Request { coordinator: &self.coordinator, metadata, config: &self.config, client, params, trace }
    }

    async fn run(
        &self,
        planned: &Planned,
        client: &Rc<ClientState>,
        params: &QueryParams,
        metadata: Rc<Metadata>,
        trace: Option<Rc<Trace>>,
    ) -> Result<Answer, Error> {
        let values = bind(&params.values, &planned.variables.columns)?;
        let env = Env { values: &values, variables: &planned.variables.columns };
        let request = self.request(&metadata, client, params, trace);
        match &planned.plan {
            Plan::Select(select) => {
                allowed(client, Permission::Select, &select.schema.keyspace, &select.schema.name)?;
                select.execute(env, &request).await
            }
            Plan::Modify(modify) => {
                allowed(client, Permission::Modify, &modify.schema.keyspace, &modify.schema.name)?;
                modify.execute(env, &request).await
            }
            Plan::Batch(batch) => run_batch(batch, env, &request).await,
            Plan::Use(keyspace) => self.use_keyspace(client, keyspace, &metadata),
            Plan::Truncate(statement, attributes) => {
                let keyspace = names::keyspace_of(client, &statement.table)?;
                allowed(client, Permission::Modify, &keyspace, &statement.table.name)?;
                let timeout = attributes.timeout(env, self.config.truncate_timeout)?;
                schema::truncate(client, statement, Some(timeout)).await
            }
            Plan::Describe(statement) => {
                authorize(client.role.borrow().as_deref(), Permission::Describe, Resource::AllKeyspaces)?;
                describe::describe(client, statement)
            }
            Plan::Schema(statement) => {
                let permission = permission_of(statement);
                authorize(client.role.borrow().as_deref(), permission, Resource::AllKeyspaces)?;
                if !is_schema_statement(statement) {
                    return Err(Error::not_supported("This statement"));
                }
                schema::execute(client, statement).await
            }
        }
    }

    fn use_keyspace(&self, client: &ClientState, keyspace: &str, metadata: &Metadata) -> Result<Answer, Error> {
        if !crate::system::is_virtual(keyspace) && metadata.keyspace(keyspace).is_none() {
            return Err(Error::invalid(format!("Keyspace '{keyspace}' does not exist")));
        }
        *client.keyspace.borrow_mut() = Some(keyspace.to_owned());
        Ok(Answer::new(AnswerKind::SetKeyspace(keyspace.to_owned())))
    }

    /// Writes a trace down, after the request.
    fn finish_trace(
        &self,
        trace: Option<Rc<Trace>>,
        client: &ClientState,
        params: &QueryParams,
        command: &'static str,
        request: &str,
        text: &str,
    ) {
        let Some(trace) = trace else { return };
        let Some(service) = rt::shard::try_service::<MetadataService>() else { return };
        let mut parameters = vec![
            ("consistency_level".to_owned(), params.consistency.name().to_owned()),
            ("query".to_owned(), text.to_owned()),
        ];
        if let Some(level) = params.serial_consistency {
            parameters.push(("serial_consistency_level".to_owned(), level.name().to_owned()));
        }
        if let Some(size) = params.page_size {
            parameters.push(("page_size".to_owned(), size.to_string()));
        }
        let elapsed = i64::from(trace.elapsed_micros()) / 1000;
        let session = trace_store::Session {
            client: client.address.map(|address| address.ip()),
            coordinator: service.info().broadcast_address,
            command,
            request: request.to_owned(),
            parameters,
            started_at: rt::time::wall_micros() / 1000 - elapsed,
        };
        rt::task::spawn(trace_store::save(self.coordinator.clone(), trace, session)).detach();
    }
}

fn trace_of(params: &QueryParams) -> Option<Rc<Trace>> {
    params.trace.map(|id| Rc::new(Trace::new(id)))
}

/// Whether a plan speaks of data, so that it is worth keeping.
fn is_data(plan: &Plan) -> bool {
    matches!(plan, Plan::Select(_) | Plan::Modify(_) | Plan::Batch(_))
}

fn plan_text(metadata: &Metadata, keyspace: Option<&str>, text: &str) -> Result<Planned, Error> {
    let parsed = parse(text).map_err(|error| Error::Syntax(error.to_string()))?;
    plan(metadata, keyspace, parsed)
}

/// The plan of a kept statement, made anew if its tables have changed.
#[inline]
fn current(kept: &Kept, metadata: &Metadata) -> Result<Rc<Planned>, Error> {
    match kept.plan() {
        Some(planned) if planned.is_current(metadata) => Ok(planned),
        _ => {
            let planned = Rc::new(plan_text(metadata, kept.keyspace.as_deref(), &kept.text)?);
            kept.set_plan(planned.clone());
            Ok(planned)
        }
    }
}

#[inline]
fn allowed(client: &ClientState, permission: Permission, keyspace: &str, table: &str) -> Result<(), Error> {
    authorize(client.role.borrow().as_deref(), permission, Resource::Table { keyspace, table })
}

fn permission_of(statement: &Statement) -> Permission {
    match statement {
        Statement::CreateKeyspace(_) | Statement::CreateTable(_) | Statement::CreateType(_) => Permission::Create,
        Statement::DropKeyspace(_) | Statement::DropTable(_) | Statement::DropType(_) => Permission::Drop,
        _ => Permission::Alter,
    }
}

async fn run_batch(plan: &BatchPlan, env: Env<'_>, request: &Request<'_>) -> Result<Answer, Error> {
    for modify in &plan.statements {
        allowed(request.client, Permission::Modify, &modify.schema.keyspace, &modify.schema.name)?;
    }
    let parts: Vec<Part<'_>> = plan.statements.iter().map(|modify| Part { modify, env }).collect();
    let attributes: &Attributes = &plan.attributes;
    let now = rt::time::wall_micros();
    let whole = Whole {
        kind: plan.kind,
        timestamp: attributes.timestamp(env, now, request.config.restrict_future_timestamp)?,
        timeout: attributes
            .timeout
            .as_ref()
            .map(|_| attributes.timeout(env, request.config.write_timeout))
            .transpose()?,
    };
    batch::execute(&parts, &whole, request).await
}
