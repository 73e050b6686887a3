//! Tables for people: columns as wide as their widest cell.

use std::io::Write;

use super::print as print_to;

/// Prints rows under their headings.
pub(super) fn print<const N: usize>(headings: [&str; N], rows: &[[String; N]]) -> anyhow::Result<()> {
    let mut widths = headings.map(|heading| heading.chars().count());
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    print_to(|output| {
        let mut line = |cells: &[String; N]| {
            let padded = cells.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}"));
            let text = padded.collect::<Vec<_>>().join("  ");
            writeln!(output, "{}", text.trim_end())
        };
        line(&headings.map(str::to_owned))?;
        rows.iter().try_for_each(line)
    })
}
