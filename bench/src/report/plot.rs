//! Line charts as SVG.

use std::fmt::Write as _;

const WIDTH: f64 = 520.0;
const HEIGHT: f64 = 240.0;
const LEFT: f64 = 62.0;
const RIGHT: f64 = 12.0;
const TOP: f64 = 28.0;
const BOTTOM: f64 = 40.0;
/// Steps of an axis, about.
const TICKS: f64 = 5.0;

/// A line of a chart.
#[derive(Clone, Debug)]
pub(super) struct Line {
    /// What it shows.
    pub(super) name: String,
    /// CSS colour.
    pub(super) colour: &'static str,
    /// Whether it is dashed.
    pub(super) is_dashed: bool,
    /// Points, in the order of their x.
    pub(super) points: Vec<(f64, f64)>,
}

/// A chart.
#[derive(Clone, Debug)]
pub(super) struct Chart<'a> {
    /// Heading.
    pub(super) title: &'a str,
    /// What the x axis shows.
    pub(super) x_label: &'a str,
    /// What the y axis shows.
    pub(super) y_label: &'a str,
    /// Whether y goes by factors of ten.
    pub(super) is_log: bool,
    /// Whether points are marked.
    pub(super) has_dots: bool,
    /// Names of positions on the x axis, instead of numbers.
    pub(super) x_names: Vec<(f64, String)>,
    /// Heights that are marked from side to side, and what stands there.
    pub(super) marks: Vec<(f64, &'static str)>,
    /// The lines.
    pub(super) lines: Vec<Line>,
}

/// One axis: from figures to places.
struct Axis {
    low: f64,
    high: f64,
    is_log: bool,
    from: f64,
    to: f64,
}

impl Axis {
    fn place(&self, figure: f64) -> f64 {
        let scale = |f: f64| {
            if self.is_log {
                f.max(self.low).log10()
            } else {
                f
            }
        };
        let (low, high) = (scale(self.low), scale(self.high));
        let share = (scale(figure) - low) / (high - low);
        self.from + share.clamp(0.0, 1.0) * (self.to - self.from)
    }

    /// Figures to mark.
    fn ticks(&self) -> Vec<f64> {
        let mut ticks = Vec::new();
        if self.is_log {
            let mut tick = self.low;
            while tick <= self.high * 1.0001 && ticks.len() < 12 {
                ticks.push(tick);
                tick *= 10.0;
            }
            return ticks;
        }
        let rough = (self.high - self.low) / TICKS;
        let unit = 10f64.powf(rough.log10().floor());
        let factors = [1.0, 2.0, 5.0, 10.0];
        let step = factors
            .iter()
            .map(|factor| factor * unit)
            .find(|step| *step >= rough);
        let step = step.unwrap_or(rough);
        let mut tick = self.low;
        while tick <= self.high * 1.0001 && ticks.len() < 12 {
            ticks.push(tick);
            tick += step;
        }
        ticks
    }
}

impl Chart<'_> {
    /// The picture.
    pub(super) fn svg(&self) -> String {
        let (x, y) = self.axes();
        let mut out = String::new();
        let _ = write!(
            out,
            "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{}\">",
            escape(self.title)
        );
        text(&mut out, (LEFT, 14.0), "start", "t", self.title);
        self.draw_axes(&mut out, &x, &y);
        self.draw_marks(&mut out, &y);
        for line in &self.lines {
            self.draw(&mut out, &x, &y, line);
        }
        out.push_str("</svg>");
        out
    }

    fn axes(&self) -> (Axis, Axis) {
        let points = || self.lines.iter().flat_map(|line| &line.points);
        let highest = |figures: &mut dyn Iterator<Item = f64>| figures.fold(0.0, f64::max);
        let x_high = highest(&mut points().map(|p| p.0)).max(1e-9);
        let marks = self.marks.iter().map(|mark| mark.0);
        let y_high = highest(&mut points().map(|p| p.1).chain(marks)).max(1e-9);
        let lowest = points()
            .map(|p| p.1)
            .filter(|y| *y > 0.0)
            .fold(y_high, f64::min);
        let x = Axis {
            low: 0.0,
            high: x_high,
            is_log: false,
            from: LEFT,
            to: WIDTH - RIGHT,
        };
        let (low, high) = if self.is_log {
            let low = 10f64.powf(lowest.log10().floor());
            (low, 10f64.powf(y_high.log10().ceil()).max(low * 10.0))
        } else {
            (0.0, y_high * 1.05)
        };
        let y = Axis {
            low,
            high,
            is_log: self.is_log,
            from: HEIGHT - BOTTOM,
            to: TOP,
        };
        (x, y)
    }

    fn draw_axes(&self, out: &mut String, x: &Axis, y: &Axis) {
        for tick in y.ticks() {
            let at = y.place(tick);
            let right = WIDTH - RIGHT;
            let _ = write!(
                out,
                "<line class=\"g\" x1=\"{LEFT}\" x2=\"{right}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/>"
            );
            text(out, (LEFT - 6.0, at + 3.5), "end", "a", &figure(tick));
        }
        let names = if self.x_names.is_empty() {
            x.ticks()
                .into_iter()
                .map(|tick| (tick, figure(tick)))
                .collect()
        } else {
            self.x_names.clone()
        };
        let bottom = HEIGHT - BOTTOM;
        for (place, name) in names {
            text(out, (x.place(place), bottom + 14.0), "middle", "a", &name);
        }
        let middle = f64::midpoint(LEFT, WIDTH - RIGHT);
        text(out, (middle, HEIGHT - 8.0), "middle", "a", self.x_label);
        let _ = write!(
            out,
            "<text class=\"a\" text-anchor=\"middle\" transform=\"translate(12 {:.1}) \
             rotate(-90)\">{}</text>",
            f64::midpoint(TOP, bottom),
            escape(self.y_label)
        );
    }

    fn draw_marks(&self, out: &mut String, y: &Axis) {
        for (height, name) in &self.marks {
            let (at, right) = (y.place(*height), WIDTH - RIGHT);
            let _ = write!(
                out,
                "<line class=\"m\" x1=\"{LEFT}\" x2=\"{right}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/>"
            );
            text(out, (right - 2.0, at - 3.0), "end", "a", name);
        }
    }

    fn draw(&self, out: &mut String, x: &Axis, y: &Axis, line: &Line) {
        let place = |(at, value): &(f64, f64)| (x.place(*at), y.place(*value));
        let places: Vec<(f64, f64)> = line.points.iter().map(place).collect();
        let path: Vec<String> = places
            .iter()
            .map(|(x, y)| format!("{x:.1},{y:.1}"))
            .collect();
        let (colour, name) = (line.colour, escape(&line.name));
        let style = if line.is_dashed {
            "stroke-width=\"1\" stroke-dasharray=\"3 2\""
        } else {
            "stroke-width=\"1.6\""
        };
        let _ = write!(
            out,
            "<polyline fill=\"none\" stroke=\"{colour}\" {style} points=\"{}\">\
             <title>{name}</title></polyline>",
            path.join(" ")
        );
        if !self.has_dots {
            return;
        }
        for ((x, y), (at, value)) in places.iter().zip(&line.points) {
            let (at, value) = (figure(*at), figure(*value));
            let _ = write!(
                out,
                "<circle fill=\"{colour}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\"><title>{name}: \
                 {at}, {value}</title></circle>"
            );
        }
    }
}

fn text(out: &mut String, at: (f64, f64), anchor: &str, class: &str, words: &str) {
    let _ = write!(
        out,
        "<text class=\"{class}\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"{anchor}\">{}</text>",
        at.0,
        at.1,
        escape(words)
    );
}

/// Text that means nothing to HTML.
pub(super) fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

/// A figure with few digits.
fn figure(value: f64) -> String {
    match value {
        v if v >= 1e9 => format!("{}G", short(v / 1e9)),
        v if v >= 1e6 => format!("{}M", short(v / 1e6)),
        v if v >= 1e3 => format!("{}k", short(v / 1e3)),
        v => short(v),
    }
}

fn short(value: f64) -> String {
    let text = format!("{value:.2}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(points: Vec<(f64, f64)>, is_log: bool) -> Chart<'static> {
        Chart {
            title: "a < b",
            x_label: "x",
            y_label: "y",
            is_log,
            has_dots: true,
            x_names: Vec::new(),
            marks: Vec::new(),
            lines: vec![Line {
                name: "one".to_owned(),
                colour: "red",
                is_dashed: false,
                points,
            }],
        }
    }

    #[test]
    fn any_points_make_a_picture() {
        for points in [
            vec![],
            vec![(0.0, 0.0)],
            vec![(0.0, 1e-3), (1.0, 5e8)],
            vec![(3.0, 7.0); 5],
        ] {
            for is_log in [false, true] {
                let svg = chart(points.clone(), is_log).svg();
                assert!(svg.contains("a &lt; b"));
                assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
                assert_eq!(svg.matches("<circle").count(), points.len());
            }
        }
    }

    #[test]
    fn marks_are_within_the_picture() {
        let marked = Chart {
            marks: vec![(250e3, "250 ms")],
            ..chart(vec![(0.0, 10.0), (1.0, 20.0)], true)
        };
        let (_, y) = marked.axes();
        assert!(y.high >= 250e3, "{}", y.high);
        let at = y.place(250e3);
        assert!(at > TOP && at < y.place(20.0), "{at}");
        let svg = marked.svg();
        assert_eq!(svg.matches("class=\"m\"").count(), 1);
        assert!(svg.contains(">250 ms</text>"));
    }

    #[test]
    fn figures_are_short() {
        assert_eq!(figure(0.0), "0");
        assert_eq!(figure(1500.0), "1.5k");
        assert_eq!(figure(2e6), "2M");
        assert_eq!(figure(0.25), "0.25");
    }

    #[test]
    fn axes_have_few_marks() {
        for high in [1e-6, 0.7, 1.0, 999.0, 1e12] {
            for is_log in [false, true] {
                let axis = Axis {
                    low: if is_log { high / 1e3 } else { 0.0 },
                    high,
                    is_log,
                    from: 0.0,
                    to: 1.0,
                };
                let count = axis.ticks().len();
                assert!((2..=12).contains(&count), "{high} {count}");
            }
        }
    }
}
