//! Divides the relations of a WHERE clause into restrictions of keys and filters, and refuses
//! invalid ones.

use super::filter::Test;
use super::relation::{Restriction, restriction};
use super::{Clustering, Filter, Op, Ops, Partition, Restrictions};
use crate::error::Error;
use crate::pace::PLAN_WORK;
use crate::restrictions::clustering::Tuple;
use crate::syntax::ast::{CompareOp, Relation};
use crate::term::{Term, Variables};
use model::schema::{Column, ColumnKind, TableSchema};
use replica::OutputColumn;

/// The statement that has the restrictions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Purpose {
    /// A SELECT, with or without ALLOW FILTERING.
    Read {
        /// Whether filtering is allowed: by ALLOW FILTERING, or because the table is virtual and
        /// small.
        filtering: bool,
    },
    /// UPDATE or DELETE, with its name.
    Write(&'static str),
}

const NEEDS_FILTERING: &str = "Cannot execute this query as it might involve data filtering and thus may have \
     unpredictable performance. If you want to execute this query despite the performance unpredictability, use ALLOW FILTERING";

/// The output column for a column's value.
pub fn output_of(column: &Column) -> OutputColumn {
    match column.kind {
        ColumnKind::PartitionKey => OutputColumn::PartitionKey(column.position),
        ColumnKind::Clustering => OutputColumn::Clustering(column.position),
        ColumnKind::Static | ColumnKind::Regular => OutputColumn::Value(column.id),
    }
}

/// The restrictions of a WHERE clause on a table.
pub async fn analyse(
    schema: &TableSchema,
    relations: &[Relation],
    purpose: Purpose,
    variables: &mut Variables<'_>,
) -> Result<Restrictions, Error> {
    let mut sorted = Sorted {
        schema,
        purpose,
        partition: schema.partition_key.iter().map(|_| Ops::new()).collect(),
        clustering: schema.clustering.iter().map(|_| Ops::new()).collect(),
        tuples: Vec::new(),
        token: Vec::new(),
        filters: Vec::new(),
        others: Vec::new(),
    };
    for relation in relations {
        variables.pace.worked(PLAN_WORK).await?;
        match restriction(schema, relation, variables).await? {
            Restriction::Column(column, op) => sorted.column(column, op)?,
            Restriction::Filter(column, test) => sorted.filter(column, test),
            Restriction::Tuple(first, tuple) => sorted.tuples.push((first, tuple)),
            Restriction::NotTuple(first, tuple) => sorted.filter_tuple(&schema.clustering[first..], tuple, true),
            Restriction::Token(op) => sorted.token.push(op),
        }
    }
    sorted.finish()
}

struct Sorted<'s> {
    schema: &'s TableSchema,
    purpose: Purpose,
    partition: Box<[Ops]>,
    clustering: Box<[Ops]>,
    tuples: Vec<(usize, Tuple)>,
    token: Vec<Op>,
    filters: Vec<Filter>,
    /// The names of restricted columns outside of the primary key, and of key columns with a
    /// restriction that only a filter can check.
    others: Vec<String>,
}

impl Sorted<'_> {
    fn filtering(&self) -> bool {
        self.purpose == Purpose::Read { filtering: true }
    }

    fn is_write(&self) -> bool {
        matches!(self.purpose, Purpose::Write(_))
    }

    fn needs_filtering(&self) -> Result<(), Error> {
        if self.filtering() { Ok(()) } else { Err(Error::invalid(NEEDS_FILTERING)) }
    }

    fn column(&mut self, column: &Column, op: Op) -> Result<(), Error> {
        let position = column.position as usize;
        let ops = match column.kind {
            ColumnKind::PartitionKey => &mut self.partition[position],
            ColumnKind::Clustering => &mut self.clustering[position],
            ColumnKind::Static | ColumnKind::Regular => {
                self.filter_op(column, op);
                return Ok(());
            }
        };
        ops.push(op);
        Ok(())
    }

    fn filter(&mut self, column: &Column, test: Test) {
        self.others.push(column.name.clone());
        let (name, ty) = (column.name.clone(), column.ty.clone());
        self.filters.push(Filter { column: output_of(column), name, ty, test, rest: Vec::new() });
    }

    /// Adds a filter on several columns together, starting with the first of these. Negated if
    /// true.
    fn filter_tuple(&mut self, columns: &[Column], tuple: Tuple, negated: bool) {
        let columns = &columns[..tuple.width().max(1)];
        let Some((first, rest)) = columns.split_first() else { return };
        self.others.push(first.name.clone());
        let (name, ty) = (first.name.clone(), first.ty.clone());
        let rest = rest.iter().map(|column| (output_of(column), column.ty.clone())).collect();
        self.filters.push(Filter { column: output_of(first), name, ty, test: Test::Tuple(tuple, negated), rest });
    }

    fn filter_op(&mut self, column: &Column, op: Op) {
        let compare = |op: CompareOp, term: Term| Test::Compare(op, term);
        let test = match op {
            Op::Eq(term) => compare(CompareOp::Eq, term),
            Op::In(list) => Test::In(list, false),
            Op::Lower(term, true) => compare(CompareOp::Ge, term),
            Op::Lower(term, false) => compare(CompareOp::Gt, term),
            Op::Upper(term, true) => compare(CompareOp::Le, term),
            Op::Upper(term, false) => compare(CompareOp::Lt, term),
        };
        self.filter(column, test);
    }

    fn finish(mut self) -> Result<Restrictions, Error> {
        if let Purpose::Write(statement) = self.purpose {
            if !self.token.is_empty() {
                return Err(Error::invalid(format!(
                    "The token function cannot be used in WHERE clauses for {statement} statements"
                )));
            }
            if !self.others.is_empty() {
                return Err(Error::invalid(format!(
                    "Invalid where clause contains non PRIMARY KEY columns: {}",
                    self.others.join(", ")
                )));
            }
        }
        let partition = self.partition()?;
        let restricted = !self.tuples.is_empty() || self.clustering.iter().any(|ops| !ops.is_empty());
        if restricted && !partition.is_keys() {
            self.needs_filtering()?;
        }
        let clustering = self.clustering()?;
        if !self.filters.is_empty() {
            self.needs_filtering()?;
        }
        Ok(Restrictions { partition, clustering, filters: self.filters.into() })
    }

    fn partition(&mut self) -> Result<Partition, Error> {
        let schema = self.schema;
        let columns = std::mem::take(&mut self.partition);
        let names = |columns: &mut dyn Iterator<Item = &Column>| {
            columns.map(|column| column.name.as_str()).collect::<Vec<_>>().join(", ")
        };
        let restricted = columns.iter().filter(|ops| !ops.is_empty()).count();
        if !self.token.is_empty() {
            if restricted > 0 {
                return Err(Error::invalid(format!(
                    "Columns \"{}\" cannot be restricted by both a normal relation and a token relation",
                    names(&mut schema.partition_key.iter())
                )));
            }
            return Ok(Partition::Token(std::mem::take(&mut self.token).into()));
        }
        if columns.iter().all(|ops| ops.iter().any(Op::is_values)) {
            return Ok(Partition::Keys(columns));
        }
        let only_bounds = columns.iter().any(|ops| !ops.is_empty() && !ops.iter().any(Op::is_values));
        if only_bounds && !self.filtering() {
            return Err(Error::invalid(
                "Only EQ and IN relation are supported on the partition key (unless you use the token() function or \
                 allow filtering)",
            ));
        }
        let missing = columns.iter().zip(&schema.partition_key).filter(|(ops, _)| ops.is_empty());
        if self.is_write() {
            let missing = names(&mut missing.map(|(_, column)| column));
            return Err(Error::invalid(format!("Missing mandatory PRIMARY KEY part {missing}")));
        }
        if restricted > 0 {
            self.needs_filtering()?;
            for (ops, column) in columns.into_iter().zip(&schema.partition_key) {
                ops.into_iter().for_each(|op| self.filter_op(column, op));
            }
        }
        Ok(Partition::All)
    }

    fn clustering(&mut self) -> Result<Clustering, Error> {
        let schema = self.schema;
        let columns = std::mem::take(&mut self.clustering);
        if !self.tuples.is_empty() {
            if columns.iter().any(|ops| !ops.is_empty()) {
                return Err(Error::invalid(
                    "Mixing single column relations and multi column relations on clustering columns is not allowed",
                ));
            }
            return self.tuples();
        }
        if columns.iter().all(|ops| ops.is_empty()) {
            return Ok(Clustering::All);
        }
        let mut prefix = Vec::new();
        let mut slice = Ops::new();
        let mut gap: Option<&Column> = None;
        for (ops, column) in columns.into_iter().zip(&schema.clustering) {
            if ops.is_empty() {
                gap = gap.or(Some(column));
            } else if let Some(gap) = gap {
                if !self.filtering() {
                    return Err(Error::invalid(if slice.is_empty() {
                        format!(
                            "PRIMARY KEY column \"{}\" cannot be restricted as preceding column \"{}\" is not restricted",
                            column.name, gap.name
                        )
                    } else {
                        format!(
                            "Clustering column \"{}\" cannot be restricted (preceding column \"{}\" is restricted by a \
                             non-EQ relation)",
                            column.name, gap.name
                        )
                    }));
                }
                ops.into_iter().for_each(|op| self.filter_op(column, op));
            } else if ops.iter().any(Op::is_values) {
                prefix.push(ops);
            } else {
                slice = ops;
                gap = Some(column);
            }
        }
        if prefix.is_empty() && slice.is_empty() {
            return Ok(Clustering::All);
        }
        Ok(Clustering::Columns { prefix: prefix.into(), slice: slice.into_iter().collect() })
    }

    fn tuples(&mut self) -> Result<Clustering, Error> {
        let schema = self.schema;
        let mut out: Vec<Tuple> = Vec::new();
        for (first, tuple) in std::mem::take(&mut self.tuples) {
            if first != 0 {
                if self.filtering() {
                    match tuple {
                        Tuple::Eq(terms) => {
                            for (column, term) in schema.clustering[first..].iter().zip(terms) {
                                self.filter_op(column, Op::Eq(term));
                            }
                        }
                        tuple => self.filter_tuple(&schema.clustering[first..], tuple, false),
                    }
                    continue;
                }
                return Err(Error::invalid(format!(
                    "PRIMARY KEY column \"{}\" cannot be restricted as preceding column \"{}\" is not restricted",
                    schema.clustering[first].name, schema.clustering[0].name
                )));
            }
            let is_slice = |tuple: &Tuple| matches!(tuple, Tuple::Lower(..) | Tuple::Upper(..));
            let columns = |count: usize| {
                schema.clustering[..count].iter().map(|c| c.name.as_str()).collect::<Vec<_>>().join(", ")
            };
            for before in &out {
                let name = columns(before.width().min(tuple.width()));
                match (is_slice(before), is_slice(&tuple)) {
                    (true, true) if matches!(before, Tuple::Lower(..)) == matches!(tuple, Tuple::Lower(..)) => {
                        let side = if matches!(tuple, Tuple::Lower(..)) { "start" } else { "end" };
                        return Err(Error::invalid(format!(
                            "More than one restriction was found for the {side} bound on {name}"
                        )));
                    }
                    (a, b) if a != b => {
                        return Err(Error::invalid(format!(
                            "Column \"{name}\" cannot be restricted by both an equality and an inequality relation"
                        )));
                    }
                    (false, false) => {
                        return Err(Error::invalid(format!(
                            "{name} cannot be restricted by more than one relation if it includes an Equal"
                        )));
                    }
                    _ => {}
                }
            }
            out.push(tuple);
        }
        Ok(if out.is_empty() { Clustering::All } else { Clustering::Tuples(out.into()) })
    }
}
