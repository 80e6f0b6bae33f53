# SPDX-License-Identifier: Apache-2.0
# What builds the site: the releases that it was written with.
set(TUTTI_SITE_PACKAGES mkdocs-material==9.8.2 mkdocs==1.6.1 markdown==3.11.3 pymdown-extensions==13.1.2 pygments==2.21.0)
