//! Plans SELECT statements.

use super::aggregate::Aggregate;
use super::distinct::{Distinct, OutputSlots};
use super::expression::{Columns, Item};
use super::group::{self, Grouping};
use super::selector::Selector;
use super::{Select, Shape, SortKey};
use crate::api::{ColumnSpec, ResultMetadata};
use crate::attributes::Attributes;
use crate::error::Error;
use crate::restrictions::analyse::output_of;
use crate::restrictions::clustering::Tuple;
use crate::restrictions::filter::Test;
use crate::restrictions::{Clustering, Filter, Op, Partition, Purpose, Restrictions, analyse};
use crate::source::VirtualTable;
use crate::syntax::ast::{self, OrderBy, Selection};
use crate::term::{Variables, prepare};
use model::CqlType;
use model::range::{RowRange, Slice};
use model::schema::{Column, ColumnKind, TableSchema};
use model::types::json_string;
use replica::{Output, OutputColumn, Reduction};
use smallvec::SmallVec;
use std::rc::Rc;

/// Plans a SELECT from this table.
pub async fn plan(
    schema: &Rc<TableSchema>,
    virtual_table: Option<Rc<dyn VirtualTable>>,
    statement: &ast::Select,
    variables: &mut Variables<'_>,
) -> Result<Select, Error> {
    let fragments = statement.from.as_ref().is_some_and(|from| from.mutation_fragments);
    if fragments && !statement.order_by.is_empty() {
        return Err(Error::invalid("ORDER BY is not supported in SELECT FROM MUTATION_FRAGMENTS() statements."));
    }
    variables.of_table(schema);
    let mut columns = Columns { schema, variables, output: OutputSlots::default(), aggregates: Distinct::default() };
    let mut items = columns.items(&statement.selection).await?;
    if statement.json {
        items = vec![as_json(items)];
    }
    let Columns { output: mut slots, aggregates: Distinct { list: aggregates, .. }, .. } = columns;
    let filtering = statement.allow_filtering || virtual_table.is_some() && !fragments;
    let restrictions = analyse(schema, &statement.relations, Purpose::Read { filtering }, variables).await?;
    check_selection(schema, statement, &slots.columns, &restrictions)?;
    let order = order(schema, &statement.order_by, &restrictions)?;
    let groups = group::columns(schema, &statement.group_by, &restrictions, statement.distinct)?;
    let optional = |term: &Option<ast::Term>, name: &str, variables: &mut Variables<'_>| {
        term.as_ref().map(|term| prepare(variables, term, name, &CqlType::Int).map(Box::new)).transpose()
    };
    let per_partition_limit = optional(&statement.per_partition_limit, "[per_partition_limit]", variables)?;
    let is_aggregate = !aggregates.is_empty() && groups.is_empty();
    if per_partition_limit.is_some() {
        may_be_limited_by_partition(statement.distinct, is_aggregate)?;
    }
    let limit = optional(&statement.limit, "[limit]", variables)?;
    let attributes = Attributes::plan(&statement.attributes, variables)?;

    let mut slot = |column: OutputColumn| slots.of(column);
    let slots_of = |filter: &Filter| {
        let columns = std::iter::once(filter.column).chain(filter.rest.iter().map(|(column, _)| *column));
        columns.map(&mut slot).collect::<SmallVec<[usize; 1]>>()
    };
    let filter_slots: Box<[_]> = restrictions.filters.iter().map(slots_of).collect();
    let sort = sort_keys(&order, &restrictions, &mut slot);
    let mut slots_of_columns =
        |columns: &mut dyn Iterator<Item = &Column>| columns.map(|column| slot(output_of(column))).collect();
    let mut key_slots = Box::default();
    if per_partition_limit.is_some() && (!restrictions.filters.is_empty() || !groups.is_empty()) {
        key_slots = slots_of_columns(&mut schema.partition_key.iter());
    }
    let grouping = (!groups.is_empty()).then(|| {
        let partition = slots_of_columns(&mut schema.partition_key.iter());
        let clustering: &[Column] = if statement.distinct { &[] } else { &schema.clustering };
        let clustering = slots_of_columns(&mut clustering.iter());
        Box::new(Grouping { slots: slots_of_columns(&mut groups.iter().copied()), partition, clustering })
    });
    let reversed = order.first().is_some_and(|(column, descending)| column.descending != *descending);

    let mut output = slots.columns;
    let extra = !filter_slots.is_empty() || !sort.is_empty();
    let selectors = items.iter().map(|item| item.selector.clone()).collect();
    let mut shape = match !aggregates.is_empty() || grouping.is_some() {
        true => Shape::Aggregate(aggregates.into(), selectors),
        false => Shape::Rows(selectors),
    };
    if !extra
        && matches!(shape, Shape::Rows(_))
        && let Some(slots) = plain_column_slots(&items)
    {
        output = slots.into_iter().map(|slot| output[slot]).collect();
        shape = Shape::Plain;
    }
    let whole_partitions = restrictions.clustering == Clustering::All;
    let static_row =
        !schema.statics.is_empty() && (whole_partitions || output.iter().any(|column| is_static(schema, column)));
    let slice =
        whole_partitions.then(|| Rc::new(Slice { rows: vec![RowRange::FULL], static_row, reversed, resume: None }));
    let output = Output::new(output, whole_partitions, statement.distinct);
    let plain = restrictions.filters.is_empty() && grouping.is_none() && per_partition_limit.is_none();
    let reductions = if plain { reductions(&shape, &output) } else { None };
    let reduced = reductions.map(|reductions| Rc::new(output.reduced(reductions)));
    let metadata = ResultMetadata { columns: specs(items, variables), ..Default::default() };
    Ok(Select {
        schema: schema.clone(),
        virtual_table,
        restrictions,
        filter_slots,
        output: Rc::new(output),
        reduced,
        shape,
        slice,
        static_row,
        reversed,
        sort: sort.into(),
        grouping,
        key_slots,
        limit,
        per_partition_limit,
        attributes,
        allow_filtering: statement.allow_filtering,
        bypass_cache: statement.bypass_cache,
        metadata: Rc::new(metadata),
    })
}

fn may_be_limited_by_partition(is_distinct: bool, is_aggregate: bool) -> Result<(), Error> {
    match (is_distinct, is_aggregate) {
        (true, _) => Err(Error::invalid("PER PARTITION LIMIT is not allowed with SELECT DISTINCT queries")),
        (_, true) => Err(Error::invalid("PER PARTITION LIMIT is not allowed with aggregate queries.")),
        _ => Ok(()),
    }
}

/// Checks that these columns can be selected under these restrictions.
fn check_selection(
    schema: &TableSchema,
    statement: &ast::Select,
    output: &[OutputColumn],
    restrictions: &Restrictions,
) -> Result<(), Error> {
    if statement.distinct {
        check_distinct(schema, output, restrictions.partition.is_keys())?;
    }
    let is_whole = restrictions.clustering == Clustering::All;
    if statement.distinct && !(is_whole && restrictions.filters.iter().all(|filter| is_of_partition(schema, filter))) {
        return Err(Error::invalid(
            "SELECT DISTINCT with WHERE clause only supports restriction by partition key and/or static columns.",
        ));
    }
    if is_whole {
        return Ok(());
    }
    match statement.selection != Selection::All && only_statics(schema, output) {
        true => Err(Error::invalid("Cannot restrict clustering columns when selecting only static columns")),
        false => Ok(()),
    }
}

/// The columns of the result.
fn specs(items: Vec<Item>, variables: &Variables<'_>) -> Box<[ColumnSpec]> {
    let (keyspace, table) = (&variables.keyspace, &variables.table);
    let spec = |Item { name, ty, .. }| ColumnSpec { keyspace: keyspace.clone(), table: table.clone(), name, ty };
    items.into_iter().map(spec).collect()
}

/// The slots of the items if all of them are plain columns, else `None`.
fn plain_column_slots(items: &[Item]) -> Option<Vec<usize>> {
    items.iter().map(|item| item.selector.as_slot()).collect()
}

/// The columns by which rows of several partitions are sorted. Empty if the storage order suffices.
fn sort_keys(
    order: &[(&Column, bool)],
    restrictions: &Restrictions,
    mut slot: impl FnMut(OutputColumn) -> usize,
) -> Vec<SortKey> {
    let has_no_value = |ops: &SmallVec<[Op; 1]>| !ops.iter().any(|op| matches!(op, Op::Eq(_)));
    match &restrictions.partition {
        Partition::Keys(columns) if columns.iter().any(has_no_value) => order
            .iter()
            .map(|(column, descending)| {
                let slot = slot(OutputColumn::Clustering(column.position));
                SortKey { slot, ty: column.ty.clone(), descending: *descending }
            })
            .collect(),
        _ => Vec::new(),
    }
}

/// The aggregates in the form that replicas compute. `None` if the coordinator needs the rows, or
/// if the result shows a row's values beside the aggregates.
fn reductions(shape: &Shape, output: &Output) -> Option<Vec<Reduction>> {
    let Shape::Aggregate(aggregates, selectors) = shape else { return None };
    if selectors.iter().any(Selector::has_column) {
        return None;
    }
    let reduction = |aggregate: &Aggregate| {
        let column = match &aggregate.argument {
            None => None,
            Some(argument) => {
                let slot = argument.as_slot()?;
                if matches!(output.columns[slot], OutputColumn::Elements(_) | OutputColumn::CellTimes(_)) {
                    return None;
                }
                Some(u16::try_from(slot).ok()?)
            }
        };
        Some(Reduction { kind: aggregate.kind, column })
    };
    aggregates.iter().map(reduction).collect()
}

/// The expressions of SELECT JSON as one JSON object. A name with capitals keeps its quotes, so
/// that INSERT JSON accepts the object.
fn as_json(items: Vec<Item>) -> Item {
    let quoted = |name: String| {
        let name = if name.chars().any(char::is_uppercase) { format!("\"{name}\"") } else { name };
        json_string(&name)
    };
    let members = items.into_iter().map(|item| (quoted(item.name), item.ty, item.selector)).collect();
    Item { selector: Selector::Json(members), name: "[json]".to_owned(), ty: CqlType::Text }
}

impl Selector {
    fn as_slot(&self) -> Option<usize> {
        match self {
            Selector::Slot(slot) => Some(*slot),
            _ => None,
        }
    }
}

/// Whether only static columns and columns of the partition key are read, and at least one static
/// column.
fn only_statics(schema: &TableSchema, output: &[OutputColumn]) -> bool {
    let is_key = |column: &&OutputColumn| matches!(column, OutputColumn::PartitionKey(_));
    let mut others = output.iter().filter(|column| !is_key(column)).peekable();
    others.peek().is_some() && others.all(|column| is_static(schema, column))
}

/// Whether a filter tests only columns that all rows of a partition share.
fn is_of_partition(schema: &TableSchema, filter: &Filter) -> bool {
    let mut columns = std::iter::once(&filter.column).chain(filter.rest.iter().map(|(column, _)| column));
    columns.all(|column| matches!(column, OutputColumn::PartitionKey(_)) || is_static(schema, column))
}

fn is_static(schema: &TableSchema, column: &OutputColumn) -> bool {
    let column = column.column_id().and_then(|id| schema.column(id));
    column.is_some_and(|column| column.kind == ColumnKind::Static)
}

fn check_distinct(schema: &TableSchema, output: &[OutputColumn], is_keys: bool) -> Result<(), Error> {
    for column in output {
        let name = match column {
            OutputColumn::Clustering(i) => &schema.clustering[*i as usize].name,
            column => match column.column_id().and_then(|id| schema.column(id)) {
                Some(column) if column.kind != ColumnKind::Static => &column.name,
                _ => continue,
            },
        };
        return Err(Error::invalid(format!(
            "SELECT DISTINCT queries must only request partition key columns and/or static columns (not {name})"
        )));
    }
    if is_keys {
        return Ok(());
    }
    for column in &schema.partition_key {
        if !output.contains(&OutputColumn::PartitionKey(column.position)) {
            return Err(Error::invalid(format!(
                "SELECT DISTINCT queries must request all the partition key columns (missing {})",
                column.name
            )));
        }
    }
    Ok(())
}

/// Whether the clustering column at this position is restricted to one value by `=`, alone, in a
/// tuple or in a filter.
fn is_fixed(restrictions: &Restrictions, position: usize) -> bool {
    let by_key = match &restrictions.clustering {
        Clustering::All => false,
        Clustering::Columns { prefix, .. } => {
            prefix.get(position).is_some_and(|ops| ops.iter().any(|op| matches!(op, Op::Eq(_))))
        }
        Clustering::Tuples(tuples) => {
            tuples.iter().any(|tuple| matches!(tuple, Tuple::Eq(terms) if position < terms.len()))
        }
    };
    let is_equality = |filter: &Filter| {
        matches!(filter.test, Test::Compare(ast::CompareOp::Eq, _))
            && matches!(filter.column, OutputColumn::Clustering(column) if usize::from(column) == position)
    };
    by_key || restrictions.filters.iter().any(is_equality)
}

/// The columns of ORDER BY, with true for DESC. All follow the table's order, or all reverse it.
fn order<'s>(
    schema: &'s TableSchema,
    order_by: &[OrderBy],
    restrictions: &Restrictions,
) -> Result<Vec<(&'s Column, bool)>, Error> {
    let mut out: Vec<(&Column, bool)> = Vec::new();
    if order_by.is_empty() {
        return Ok(out);
    }
    if !restrictions.partition.is_keys() {
        return Err(Error::invalid(
            "ORDER BY is only supported when the partition key is restricted by an EQ or an IN.",
        ));
    }
    let mut next = 0;
    for element in order_by {
        let OrderBy::Column { column: name, descending } = element else {
            return Err(Error::not_supported("ORDER BY of anything but columns"));
        };
        let column =
            schema.column_named(name).ok_or_else(|| Error::invalid(format!("Order by on unknown column {name}")))?;
        if column.kind != ColumnKind::Clustering {
            return Err(Error::invalid(format!(
                "Order by is currently only supported on the clustered columns of the PRIMARY KEY, got {name}"
            )));
        }
        while next < column.position as usize && is_fixed(restrictions, next) {
            next += 1;
        }
        if next != column.position as usize {
            return Err(Error::invalid(
                "Order by currently only supports the ordering of columns following their declared order in the PRIMARY KEY",
            ));
        }
        next += 1;
        out.push((column, *descending));
    }
    let reversed = |(column, descending): &(&Column, bool)| column.descending != *descending;
    if out.iter().any(|each| reversed(each) != reversed(&out[0])) {
        return Err(Error::invalid("Unsupported order by relation"));
    }
    Ok(out)
}
