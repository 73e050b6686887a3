//! Tables whose columns are as wide as their widest cell, and narrower if a line would be wider than a terminal.

use std::io::Write;

use super::terminal;
use plantstore_model::text::Escaped;

/// Columns of a terminal.
const LINE_MAX: usize = 80;
const GAP: &str = "  ";

#[derive(Clone, Copy)]
pub(super) enum Column {
    Text(&'static str),
    /// Text that is broken into several lines if a line would be too long for a terminal.
    Wrapped(&'static str),
    /// Aligned to the right.
    Number(&'static str),
}

impl Column {
    const fn heading(self) -> &'static str {
        match self {
            Self::Text(heading) | Self::Wrapped(heading) | Self::Number(heading) => heading,
        }
    }
}

pub(super) fn print<const N: usize>(columns: [Column; N], rows: &[[String; N]]) -> anyhow::Result<()> {
    let rows: Vec<_> = rows.iter().map(|row| row.each_ref().map(|cell| Escaped(cell).to_string())).collect();
    let widths = widths(&columns, &rows);
    terminal::print(|output| {
        let mut write = |cells: &[String; N]| {
            let cells: Vec<Vec<&str>> = cells.iter().zip(widths).map(|(cell, width)| wrap(cell, width)).collect();
            let height = cells.iter().map(Vec::len).max().unwrap_or_default();
            (0..height).try_for_each(|line| {
                let pieces = cells.iter().map(|cell| cell.get(line).copied().unwrap_or_default());
                let padded = pieces.zip(widths).zip(columns).map(|((piece, width), column)| match column {
                    Column::Number(_) => format!("{piece:>width$}"),
                    Column::Text(_) | Column::Wrapped(_) => format!("{piece:width$}"),
                });
                writeln!(output, "{}", padded.collect::<Vec<_>>().join(GAP).trim_end())
            })
        };
        write(&columns.map(|column| column.heading().to_owned()))?;
        rows.iter().try_for_each(write)
    })
}

/// Returns the widths of the columns. The widest of those that may be wrapped is narrowed until a line fits: first until they are
/// as wide as their longest words, and then, if that is not enough, as their headings.
fn widths<const N: usize>(columns: &[Column; N], rows: &[[String; N]]) -> [usize; N] {
    let heading_widths = columns.map(|column| column.heading().chars().count());
    let mut widths = heading_widths;
    let mut word_widths = heading_widths;
    for row in rows {
        for (column, cell) in row.iter().enumerate() {
            widths[column] = widths[column].max(cell.chars().count());
            let longest_word = cell.split(' ').map(|word| word.chars().count()).max();
            word_widths[column] = word_widths[column].max(longest_word.unwrap_or_default());
        }
    }
    let gaps = GAP.len() * N.saturating_sub(1);
    for min in [word_widths, heading_widths] {
        while widths.iter().sum::<usize>() + gaps > LINE_MAX {
            let wrapped = (0..N).filter(|column| matches!(columns[*column], Column::Wrapped(_)));
            let narrower = wrapped.filter(|column| widths[*column] > min[*column]);
            let Some(column) = narrower.max_by_key(|column| widths[*column]) else { break };
            widths[column] -= 1;
        }
    }
    widths
}

/// Splits a cell into pieces that fit into a column, at spaces where there are any.
fn wrap(cell: &str, width: usize) -> Vec<&str> {
    let mut pieces = Vec::new();
    let mut rest = cell;
    while let Some((end, _)) = rest.char_indices().nth(width.max(1)) {
        // A space right after the piece is a word boundary, too.
        let space = rest[..end].rfind(' ').filter(|at| *at > 0 && !rest[end..].starts_with(' '));
        let (piece, next) = rest.split_at(space.unwrap_or(end));
        pieces.push(piece);
        rest = next.trim_start_matches(' ');
    }
    pieces.push(rest);
    pieces
}
