# escape=`
FROM debian:12
ENV A=x`
y
RUN echo $A `
  b
