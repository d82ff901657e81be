# Makes tests/oracles/statistics.tsv, the values the statistics are checked against.
#   Debian: apt-get install r-base-core r-cran-coin r-cran-exactranktests
#   Rscript tests/oracles/statistics.R > tests/oracles/statistics.tsv
# One row per case: kind, forget (or first) values, probe (or second) values, setting, result.
suppressMessages({library(exactRankTests); library(coin)})
RNGversion("4.2.0"); set.seed(20250)

joined <- function(x) paste(sprintf("%.17g", x), collapse = ";")
row <- function(kind, x, y, setting, result)
  cat(kind, joined(x), joined(y), setting, joined(result), sep = "\t", fill = FALSE)
line <- function(...) { row(...); cat("\n") }

cat("# ", R.version.string, ", exactRankTests ", as.character(packageVersion("exactRankTests")),
    ", coin ", as.character(packageVersion("coin")), "\n", sep = "")

# Rank test without ties: stats::wilcox.test, exact. Values are whole, so they are read back exactly.
for (size in list(c(4, 16), c(16, 4), c(9, 13), c(20, 20), c(40, 40), c(45, 30), c(60, 60))) {
  for (shift in c(0, 300, 600)) {
    values <- sample(100000, sum(size)) / 100
    x <- values[seq_len(size[1])] - shift
    y <- values[-seq_len(size[1])]
    if (anyDuplicated(c(x, y))) next
    line("wilcox.test", x, y, "less", wilcox.test(x, y, alternative = "less", exact = TRUE)$p.value)
  }
}
# Rank test with ties: exactRankTests (shift algorithm) and coin (split-up algorithm).
for (size in list(c(4, 16), c(16, 4), c(7, 9), c(12, 20), c(20, 20), c(30, 25), c(40, 40))) {
  for (levels in c(3, 8, 25)) for (shift in c(0, 0.35)) {
    x <- sample(levels, size[1], replace = TRUE) - round(shift * levels)
    y <- sample(levels, size[2], replace = TRUE)
    line("wilcox.exact", x, y, "less", wilcox.exact(x, y, alternative = "less", exact = TRUE)$p.value)
    group <- factor(rep(c("forget", "probe"), size))
    p <- pvalue(wilcox_test(c(x, y) ~ group, alternative = "less", distribution = "exact"))
    line("coin", x, y, "less", as.numeric(p))
  }
}
# Holm.
for (k in c(1, 5, 20)) {
  p <- round(rbeta(k, 0.4, 4), 6)
  line("holm", p, 0, "", p.adjust(p, "holm"))
}
# Clopper-Pearson: lower and upper limits, one- and two-sided, at 95 %.
for (case in list(c(0, 45), c(0, 9), c(12, 45), c(28, 45), c(45, 45), c(1, 3))) {
  upper <- binom.test(case[1], case[2], alternative = "less")$conf.int
  lower <- binom.test(case[1], case[2], alternative = "greater")$conf.int
  both <- binom.test(case[1], case[2])$conf.int
  line("binom.test", case[1], case[2], "", c(upper[2], lower[1], both))
}
# Welch TOST: the two one-sided p-values.
for (i in 1:6) {
  x <- round(rnorm(4 + i, 0.2, 0.5), 6); y <- round(rnorm(16, 0, 0.8), 6); margin <- 0.93
  line("tost", x, y, sprintf("%.17g", margin),
       c(t.test(x, y, mu = -margin, alternative = "greater")$p.value,
         t.test(x, y, mu = margin, alternative = "less")$p.value))
}
# Spearman's correlation, with and without ties.
for (i in 1:6) {
  x <- round(rnorm(5 * i), if (i %% 2) 6 else 0); y <- round(x + rnorm(5 * i), 1)
  line("spearman", x, y, "", cor(x, y, method = "spearman"))
}
# Percentile by linear interpolation (type 7), as replication gaps use it.
for (i in 1:4) {
  x <- round(abs(rnorm(3 * i)), 6)
  line("quantile", x, 90, "", quantile(x, 0.9, type = 7, names = FALSE))
}
