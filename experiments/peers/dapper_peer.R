# What a user of dapper 1.1.0 writes for the examples of dapper_comparison.py, which runs this file:
#
#     Rscript dapper_peer.R EXAMPLE RELEASE.csv DRAWS.csv SCALE NITER WARMUP CHAINS SEED
#
# EXAMPLE is the name of a function below; RELEASE.csv has the released numbers, one a line, below a
# header; DRAWS.csv gets a row for each draw, chain after chain. Printed are the seconds of the
# processor and of the clock from the call to the result.
#
# dapper: K. Eng, https://github.com/mango-empire/dapper; the sampler is that of Ju, Gong, Awan and
# Rao (2022), https://arxiv.org/abs/2206.00710. The four functions that it asks for are written here
# to be fast: records are numbers in a matrix, constants are computed once, and what is constant in
# the log-probability of a release is left out. (With dapper's ddnorm() the table takes twelve times
# as long.)

library(dapper)

# Second moments of two covariates and an outcome, clamped to [-10, 10] and divided by 10, with
# Laplace noise. Records: (x1, x2, y).
regression <- function(released, scale, ...) {
  n <- 100
  entries <- which(lower.tri(diag(4), diag = TRUE))[-1]
  posterior_f <- function(dmat, theta) {
    x <- cbind(1, dmat[, 1:2])
    covariance <- solve(crossprod(x) / 2 + diag(3) / 4)
    mean <- covariance %*% crossprod(x, dmat[, 3]) / 2
    c(mean + t(chol(covariance)) %*% rnorm(3))
  }
  latent_f <- function(theta) {
    x1 <- rnorm(n, 0.90)
    x2 <- rnorm(n, -1.17)
    cbind(x1, x2, rnorm(n, theta[1] + theta[2] * x1 + theta[3] * x2, sqrt(2)))
  }
  statistic_f <- function(xi, sdp, i) {
    z <- c(1, pmin.int(pmax.int(xi, -10), 10) / 10)
    tcrossprod(z)[entries]
  }
  mechanism_f <- function(sdp, sx) -sum(abs(sdp - sx)) / scale
  model <- new_privacy(posterior_f, latent_f, mechanism_f, statistic_f, npar = 3)
  dapper_sample(model, sdp = released, init_par = numeric(3), ...)
}

# A 2x2 table of 400 people with discrete Gaussian noise. Records: the cell, 1 to 4.
table <- function(released, scale, ...) {
  n <- 400
  cells <- diag(4)
  posterior_f <- function(dmat, theta) {
    weights <- rgamma(4, 1 + tabulate(dmat, 4))
    weights / sum(weights)
  }
  latent_f <- function(theta) matrix(sample.int(4, n, replace = TRUE, prob = theta))
  statistic_f <- function(xi, sdp, i) cells[xi, ]
  mechanism_f <- function(sdp, sx) -sum((sdp - sx)^2) / (2 * scale^2)
  model <- new_privacy(posterior_f, latent_f, mechanism_f, statistic_f, npar = 4)
  dapper_sample(model, sdp = released, init_par = rep(0.25, 4), ...)
}

# Two answers from each of 400 people by randomized response, the first answers above the second
# ones; SCALE is the epsilon of an answer. Records: the cell of the 2x2 table, 1 to 4.
response <- function(released, scale, ...) {
  n <- 400
  values <- cbind(c(0, 0, 1, 1), c(0, 1, 0, 1))
  posterior_f <- function(dmat, theta) {
    weights <- rgamma(4, 1 + tabulate(dmat, 4))
    weights / sum(weights)
  }
  latent_f <- function(theta) matrix(sample.int(4, n, replace = TRUE, prob = theta))
  statistic_f <- function(xi, sdp, i) sum(values[xi, ] == sdp[c(i, n + i)])
  mechanism_f <- function(sdp, sx) sx * scale
  model <- new_privacy(posterior_f, latent_f, mechanism_f, statistic_f, npar = 4)
  dapper_sample(model, sdp = released, init_par = rep(0.25, 4), ...)
}

main <- function(example, release, draws, ...) {
  options <- as.numeric(c(...))
  released <- as.numeric(read.csv(release)[[1]])
  began <- proc.time()
  found <- get(example)(
    released, options[1],
    niter = options[2], warmup = options[3], chains = options[4], seed = options[5]
  )
  took <- proc.time() - began
  write.csv(unclass(found$chain), draws, row.names = FALSE)
  cat(took[["user.self"]] + took[["sys.self"]], took[["elapsed"]], mean(found$mean_accept), "\n")
}

do.call(main, as.list(commandArgs(trailingOnly = TRUE)))
